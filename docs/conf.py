"""Sphinx settings: Markdown pages (MyST), notebooks as they were run, the API from docstrings; nothing from other sites."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import docstrings

import rekindle

project = "Rekindle"
copyright = "the Rekindle developers, Apache-2.0"
version = release = rekindle.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc"]
exclude_patterns = ["_build"]
suppress_warnings = ["myst.header"]  # generated pages of solvers begin with a table's caption
default_role = "literal"  # a docstring writes code in single backticks

myst_heading_anchors = 3
myst_enable_extensions = ["deflist", "colon_fence", "attrs_block"]
nb_execution_mode = "off"  # notebooks show what a test's run printed; the test runs them again
nb_ipywidgets_js: dict[str, dict[str, str]] = {}  # these would come from another site

autodoc_member_order = "bysource"
autodoc_class_signature = "separated"
autodoc_typehints = "signature"
maximum_signature_line_length = 88
python_use_unqualified_type_names = True

html_theme = "pydata_sphinx_theme"
html_title = "Rekindle"
html_static_path = ["_static"]
html_css_files = ["rekindle.css"]
html_favicon = "_static/flame.svg"
html_show_sourcelink = False
html_copy_source = False
html_sidebars = {"index": [], "quickstart": [], "faq": []}
html_theme_options = {
    "logo": {"text": "Rekindle", "image_light": "_static/flame.svg", "image_dark": "_static/flame.svg"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 7,
    "show_nav_level": 1,
    "show_toc_level": 1,
    "show_prev_next": True,
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
    "search_bar_text": "Search",
    "back_to_top_button": False,
}


def setup(app):
    """Docstrings of the house's form become lists that Sphinx can set."""
    app.connect("autodoc-process-docstring", docstrings.process)

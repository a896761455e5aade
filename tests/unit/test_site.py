"""The documentation builds without a warning, and its pages load nothing from other sites."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from pages import ROOT

pytestmark = pytest.mark.sweep  # half a minute; `make docs` builds the same
LOADED = re.compile(
    r"<(?:script|img|iframe|source|link|video|audio)\b[^>]*?\b(?:src|srcset|href)=[\"'](?:https?:)?//"
    r"|url\([\"']?(?:https?:)?//|@import\s+[\"'](?:https?:)?//",
    re.IGNORECASE,
)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    for package in ("sphinx", "myst_nb", "pydata_sphinx_theme"):
        pytest.importorskip(package)
    out = tmp_path_factory.mktemp("docs") / "site"
    for command in (
        ["docs/generate.py"],
        ["-m", "sphinx", "-W", "--keep-going", "-q", "docs", str(out), "-d", f"{out}-trees"],
    ):
        done = subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=500)
        assert done.returncode == 0, done.stderr
    return out


def test_pages_load_nothing_from_other_sites(site: Path) -> None:
    files = [p for p in site.rglob("*") if p.suffix in (".html", ".css", ".svg")]
    assert len(files) > 60
    loaded = {p.name: found for p in files if (found := LOADED.findall(p.read_text(encoding="utf-8")))}
    assert loaded == {}


def test_every_kind_of_page_is_there(site: Path) -> None:
    for name in ("index", "api/the-steps", "solvers/rotor", "notebooks/unet_twice", "benchmarks/appendix", "examples"):
        assert (site / f"{name}.html").is_file()
    assert 'class="sig-name descname"' in (site / "api" / "the-steps.html").read_text(encoding="utf-8")
    assert "GiB" in (site / "notebooks" / "unet_twice.html").read_text(encoding="utf-8")


def test_the_pattern_finds_what_it_should() -> None:
    assert LOADED.search('<script defer src="https://example.org/a.js">')
    assert LOADED.search("a { background: url(//example.org/a.png) }")
    assert not LOADED.search('<a href="https://example.org/">')

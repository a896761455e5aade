"""What README and the documentation say holds: figures, links, a recipe for every error, a place for every page."""

from __future__ import annotations

import html
import importlib.util
import inspect
import re
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

import rekindle
from pages import ROOT, blocks, pages

README = (ROOT / "README.md").read_text(encoding="utf-8")
TROUBLES = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
LINK = re.compile(r"\]\(([^)#\s]+)?(?:#([^)\s]+))?\)")
MADE = ("api.md", "examples.md", "operators.md", "solvers/", "notebooks/")  # by docs/generate.py
ELSEWHERE = re.compile(r"^(?:https?:)?//|^https?:", re.IGNORECASE)


def headings(page: Path) -> set[str]:
    """The anchors that GitHub and MyST make of a page's headings."""
    text = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    found = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.replace("`", "").lower()).replace(" ", "-") for h in found}


def test_readme_says_what_was_measured() -> None:
    pytest.importorskip("pandas")
    pytest.importorskip("matplotlib")
    from readme_picture import figures, rows

    f = figures(rows())
    said = " ".join(README.split())
    assert (
        f"{f['ours_gib']:.2f} of {f['plain_gib']:.2f} GiB of activations for {f['ours_extra']:+.0%}".replace("%", " %")
        in said
    )
    assert f"takes {f['usual_extra']:+.0%}".replace("%", " %") in said
    assert f["ours_gib"] <= f["usual_gib"]


def test_the_first_saving_takes_at_most_ten_lines() -> None:
    first = blocks(ROOT / "README.md", "python")[0]
    assert len(first.code.strip().splitlines()) <= 10
    assert README.count("\n", 0, README.index(first.code)) < 30  # on the first screen


@pytest.mark.parametrize("error", [n for n in rekindle.__all__ if isinstance(getattr(rekindle, n), type)
                                   and issubclass(getattr(rekindle, n), Exception)])  # fmt: skip
def test_every_error_has_a_recipe(error: str) -> None:
    section = re.search(rf"^## {error}\n(.*?)(?=^## |\Z)", TROUBLES, re.MULTILINE | re.DOTALL)
    assert section, f"docs/troubleshooting.md has no section {error}"
    assert len(section[1].split()) > 20


@pytest.mark.parametrize("page", pages(), ids=lambda p: p.name)
def test_links_lead_somewhere(page: Path) -> None:
    words = re.sub(r"^( *)```.*?^\1```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    for target, anchor in LINK.findall(words):
        if ELSEWHERE.match(target):
            continue
        path = (page.parent / target).resolve() if target else page
        made = path.is_relative_to(ROOT / "docs") and path.relative_to(ROOT / "docs").as_posix().startswith(MADE)
        if made:
            continue
        assert path.exists(), f"{page.name} links to {target}"
        if anchor and path.suffix == ".md":
            assert html.unescape(anchor) in headings(path), f"{page.name} links to {target}#{anchor}"


def test_every_page_stands_in_a_table_of_contents() -> None:
    trees = [e for p in pages() for b in re.findall(r"```\{toctree\}\n(.*?)```", p.read_text(encoding="utf-8"), re.DOTALL)
             for e in b.splitlines() if e and not e.startswith(":")]  # fmt: skip
    names = {p.stem for p in pages() if p.parent.name == "docs"} - {"index"}
    assert names - set(trees) == set()
    assert len(trees) == len(set(trees))


def test_pictures_load_nothing() -> None:
    pictures = [*(ROOT / "docs" / "pictures").glob("*.svg"), *(ROOT / "docs" / "_static").glob("*.svg")]
    assert len(pictures) >= 3
    for path in pictures:
        words = path.read_text(encoding="utf-8")
        assert not re.search(r"(?:href|src)=[\"'](?!#)", words), path.name
        assert "<script" not in words


def module(name: str) -> ModuleType:
    """A module of docs/."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "docs" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


def test_every_public_name_has_a_place_in_the_reference() -> None:
    made = module("generate").api()
    for name in set(rekindle.__all__) - {"__version__", "zoo"}:
        assert f"<rekindle.{name}>" in made["api"]
        assert sum(f":: {name}\n" in words for page, words in made.items() if page != "api") == 1


def test_the_reference_of_checkpoint_explains_each_argument() -> None:
    said = re.findall(r"^    (\w+) : \S", rekindle.checkpoint.__doc__ or "", re.MULTILINE)
    assert set(inspect.signature(rekindle.checkpoint).parameters) <= set(said)


def test_every_operator_that_can_be_cut_stands_on_its_page() -> None:
    pytest.importorskip("torch")
    from rekindle.torch.operators.table import RULES

    rows = dict(re.findall(r"^\| `([\w:]+)` \| ([^|]*) \|", module("generate").operators(), re.MULTILINE))
    assert {name.removeprefix("aten::") for name in RULES} <= {name for name, slices in rows.items() if slices}
    assert rows["relu"] == rows["view"] == "same bits"
    assert rows["convolution"] == "measured"
    assert rows["sum"] == "probed"


def test_docstrings_become_lists() -> None:
    said = """One line.

    Parameters
    ----------
    a, b : sizes,
        in bytes.

    loose : text
    More text.

    Raises
    ------
    UsageError : never.
    """
    lines = module("docstrings").converted(textwrap.dedent("    " + said).splitlines())
    assert lines == [
        "One line.", "", "", ".. rubric:: Parameters", "", "``a``, ``b``", "    sizes,", "    in bytes.", "", "``loose``",
        "    text", "", "More text.", "", "", ".. rubric:: Raises", "", ":py:exc:`~rekindle.UsageError`", "    never.",
    ]  # fmt: skip


def test_the_solver_of_the_docs_takes_forty_lines() -> None:
    code = blocks(ROOT / "docs" / "extending.md", "python")[0].code
    assert "@register(" in code
    assert len(code.strip().splitlines()) <= 40

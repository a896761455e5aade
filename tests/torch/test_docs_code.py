"""The code of README and of the documentation runs as it stands: the blocks of a page one after the other."""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

import rekindle
from marks import few
from pages import ROOT, blocks, pages
from rekindle.planning import registry
from rekindle.problem import REGISTERED

# Pages whose blocks are lines of programs that the examples run whole (tests/torch/test_examples.py).
FRAGMENTS = {"architecture.md", "execution.md", "integrations.md", "parts.md"}
ALWAYS = ("README.md", "extending.md", "troubleshooting.md")
RUN = [p.relative_to(ROOT).as_posix() for p in pages() if p.name not in FRAGMENTS and blocks(p, "python")]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The pages ask for no effort: the quick one is enough to see that their code runs."""
    for name in ("checkpoint", "plan", "frontier"):
        monkeypatch.setattr(rekindle, name, functools.partial(getattr(rekindle, name), effort="quick"))
    before = {s.name for s in registry.all_solvers()}
    with warnings.catch_warnings():  # a page may turn warnings into errors
        yield
    for name in set(REGISTERED) - before:
        del REGISTERED[name]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("page", few(RUN, [p for p in RUN if p.endswith(ALWAYS)]))
def test_the_code_of_a_page_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    module = ModuleType("code_of_a_page")
    monkeypatch.setitem(sys.modules, module.__name__, module)  # torch.compile looks for names there
    for block in blocks(ROOT / page, "python"):
        code = "\n" * (block.line - 1) + block.code  # so that a failure names the page's own line
        exec(compile(code, ROOT / page, "exec", dont_inherit=True), vars(module))


@pytest.mark.parametrize("page", sorted(FRAGMENTS))
def test_the_fragments_of_a_page_are_python(page: str) -> None:
    found = blocks(ROOT / "docs" / page, "python")
    assert found
    for block in found:
        compile(block.code, page, "exec", dont_inherit=True)

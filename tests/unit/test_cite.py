"""`rekindle.cite`: every solver has an entry, entries are whole, and plans of `auto` name what was asked."""

from __future__ import annotations

import re

import pytest

import rekindle
from command_line import step
from extra_solver import extra_solver
from rekindle.citations import FILE, by_solver
from rekindle.errors import UsageError
from rekindle.model.schedule import Schedule
from rekindle.parts.plan import Part, PartsPlan
from rekindle.planning import registry

SOLVERS = [s.name for s in registry.all_solvers()]
FIELDS = {"author", "title", "year"}


def keys(bibtex: str) -> list[str]:
    return re.findall(r"^@\w+\{(\w+),$", bibtex, re.MULTILINE)


@pytest.mark.parametrize("name", SOLVERS)
def test_every_solver_has_entries(name: str) -> None:
    assert by_solver()[name], f"name the papers of {name} in {FILE.name}"
    said = rekindle.cite(name)
    assert keys(said)[-1] == "rekindle"
    assert "solvers" not in re.findall(r"^ *(\w+) *=", said, re.MULTILINE)
    years = re.findall(r"\b(?:19|20)\d\d\b(?!\.)", registry.get(name).citation)
    assert not years or any(re.search(rf"year *= \{{{y}\}}", said) for y in years)


def test_the_file_names_no_solver_that_is_gone_and_its_entries_are_whole() -> None:
    assert set(by_solver()) == set(SOLVERS)
    for entry in {e for entries in by_solver().values() for e in entries}:
        assert set(re.findall(r"^ *(\w+) *=", entry, re.MULTILINE)) >= FIELDS
        assert entry.count("{") == entry.count("}")
        assert entry.startswith("@")
        assert entry.endswith("\n}")


def test_a_plan_cites_its_solver() -> None:
    plan = rekindle.plan(step(), minimize="memory", solver="chen-sqrt")
    assert keys(rekindle.cite(plan)) == ["chen2016sublinear", "rekindle"]


def test_auto_cites_what_it_asked() -> None:
    small = rekindle.plan(step(), minimize="memory", effort="quick")
    assert small.solver == "auto"
    assert small.status == "optimal"
    assert keys(rekindle.cite(small)) == ["hart1968formal", "rekindle"]
    asked = keys("\n".join(e for n in registry.get("auto").members(step(), "thorough", False) for e in by_solver()[n]))
    assert {"zhao2023rockmate", "imanishi2023fast", "he2023transcending", "feng2021optimal", "hart1968formal"} <= set(
        asked
    )
    assert set(registry.get("auto").members(step(), "normal", False)) <= set(SOLVERS)


def test_parts_cite_each_paper_once() -> None:
    one, other = (rekindle.plan(step(), minimize="memory", solver=name) for name in ("chen-sqrt", "none"))
    parts = tuple(Part(str(i), (p,)) for i, p in enumerate((one, other, one)))
    plan = PartsPlan.__new__(PartsPlan)
    object.__setattr__(plan, "parts", parts)
    assert keys(rekindle.cite(plan)) == ["chen2016sublinear", "rumelhart1986backpropagation", "rekindle"]


def test_a_solver_of_the_users_own_is_cited_by_its_citation() -> None:
    with extra_solver("own", lambda p: [Schedule.baseline(p.graph, "own")]):
        said = rekindle.cite(rekindle.plan(step(), minimize="memory", solver="own"))
    assert keys(said) == ["own", "rekindle"]
    assert "note  = {none}" in said


@pytest.mark.parametrize("wrong", [None, 3, "no-such-solver"])
def test_other_things_are_refused(wrong: object) -> None:
    with pytest.raises(UsageError, match="cite takes|unknown"):
        rekindle.cite(wrong)  # type: ignore[arg-type]

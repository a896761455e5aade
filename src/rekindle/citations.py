"""BibTeX entries of the papers behind a plan, from one file that names the solvers of each paper."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from . import solvers
from .errors import UsageError
from .model.any_plan import AnyPlan
from .model.plan import Plan
from .parts.plan import PartsPlan
from .planning import registry
from .problem import Solver
from .version import __version__

FILE = Path(solvers.__file__).parent / "papers.bib"
OWN = "auto"  # the solver whose entry is this project's own
SOLVERS_FIELD = re.compile(r"^ *solvers *= *\{(.*)\},\n", re.MULTILINE)
NO_BIBTEX = re.compile(r"[{}\\@%\x00-\x1f]")


def cite(what: Plan | PartsPlan | str) -> str:
    """BibTeX entries of the papers behind a plan's solver, and of Rekindle itself.

    `auto` joins the schedules of several solvers and changes them further, so the papers of all solvers that it asks about
    the plan's graph, with the plan's effort, are cited. Needs no torch.

    what : a Plan, the plans of a model's parts, or the name of a solver.

    Raises
    ------
    UsageError : `what` is none of these, or names a solver that is not registered here.
    """
    found: dict[str, None] = {}
    for name in _solvers_of(what):
        found |= dict.fromkeys(_entries(registry.get(name)))
    own = by_solver()[OWN]
    return "\n\n".join([*(e for e in found if e not in own), *own]) + "\n"


def _solvers_of(what: Plan | PartsPlan | str) -> list[str]:
    """Names of the solvers behind a plan, each once."""
    if isinstance(what, str):
        return [what]
    if not isinstance(what, AnyPlan):
        raise UsageError(f"cite takes a plan or the name of a solver, not something of type {type(what).__name__}")
    found: dict[str, None] = {}
    for _, p in what.pieces:
        solver = registry.get(p.solver)
        asked = solver.members(p.graph, p.options.effort, p.status == "optimal")
        found |= dict.fromkeys([p.solver, *asked, *(["pofo"] if solver.copies and p.options.offload else [])])
    return [*found]


def _entries(solver: Solver) -> tuple[str, ...]:
    """The solver's entries in the file; of a solver that the file does not name, one made from its citation."""
    text = NO_BIBTEX.sub(" ", solver.citation)
    key = re.sub(r"\W", "", solver.name)
    return by_solver().get(solver.name) or (f"@misc{{{key},\n  title = {{{solver.name}}},\n  note  = {{{text}}}\n}}",)


@cache
def by_solver() -> dict[str, tuple[str, ...]]:
    """Solver -> its entries, as they stand in the file but for the field that names solvers."""
    found: dict[str, tuple[str, ...]] = {}
    for entry in FILE.read_text(encoding="utf-8").strip().split("\n\n"):
        names = SOLVERS_FIELD.search(entry)
        text = SOLVERS_FIELD.sub("", entry).replace("@VERSION@", __version__)
        for name in names[1].split(", ") if names else ():
            found[name] = (*found.get(name, ()), text)
    return found

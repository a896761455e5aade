"""The names of methods, their meaning, the default methods of each suite, and the table of comparators.

plain                    the eager step
checkpoint-blocks, …     a comparator; `benchmarks/comparators/` in the repository says what each one is, and runs it
SOLVER                   a registered solver, asked for least memory
SOLVER@8%                least memory within 8 % extra cost
SOLVER=0.5               least cost within half of the plain step's activation peak
SOLVER=ogc               least cost within the published solver's own measured memory, where there is one
SOLVER=compile-0.5       least cost within the memory of that comparator; so for each comparator and each other solver
SOLVER@8%~close          that plan may add up a parameter's gradient in another order (`parity="close"`); so for each goal
comparators, solvers     short for all comparators, all solvers
others                   short for all solvers but auto
matched                  short for auto within the memory of each comparator
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..errors import UsageError
from ..planning import registry

if TYPE_CHECKING:
    from ..model.plan import Plan
    from ..torch.trace import Trace
    from .cases import Case

TOKEN_COMPARATORS = ("linear-cross-entropy", "auto-chunker")  # of models with a head and a loss of tokens
COMPARATORS_OF_ALL = (
    "checkpoint-blocks", "checkpoint-sequential", "selective-matmul", "compile-0.75", "compile-0.5", "compile-0.25",
    "compile-0",
)  # fmt: skip
COMPARATORS = (*COMPARATORS_OF_ALL, *TOKEN_COMPARATORS)
DEFAULTS = {
    "seeds": ("plain", *COMPARATORS_OF_ALL, "others", "auto@8%", "auto@33%", "auto=ogc"),
    "smoke": ("plain", *COMPARATORS, "none", "every", "chen-sqrt", "feng", "auto@8%", "auto@33%"),
}
COSTS = {"seeds": "flops", "smoke": "flops"}
TARGET = "rtx2080ti"  # the device of the published table
GOALS = re.compile(
    r"(?P<solver>[^@=~]+)(?:@(?P<extra>\d+(?:\.\d+)?)%|=(?P<share>0?\.\d+|1(?:\.0*)?)|=(?P<like>[a-z][^~]*))?"
    r"(?P<close>~close)?"
)


@dataclass(frozen=True)
class Asked:
    """A method's request to a solver. At most one of the goals is set; with none set, the request is for least memory.

    max_overhead : least memory within this extra cost.
    share : least cost within this share of the plain step's activation peak.
    like : least cost within the memory of a comparator, of another solver, or ("ogc") of the published solver as measured.
    parity : "bitwise", or "close": see `rekindle.plan`.
    """

    solver: str
    max_overhead: float | None = None
    share: float | None = None
    like: str | None = None
    parity: str = "bitwise"


def parse(method: str) -> Asked | None:
    """The request in a method's name: "auto@8%" -> Asked("auto", max_overhead=0.08).

    None: the name is plain, a comparator, or no method.
    """
    found = GOALS.fullmatch(method)
    if found is None or method == "plain" or method in COMPARATORS:
        return None
    extra, share = found["extra"], found["share"]
    if share is not None and not 0 < float(share) <= 1:
        return None
    others = {s.name for s in registry.all_solvers()} - {found["solver"]}
    if found["like"] not in (None, "ogc", *COMPARATORS, *others):
        return None
    return Asked(
        found["solver"], None if extra is None else float(extra) / 100, None if share is None else float(share),
        found["like"], "bitwise" if found["close"] is None else "close",
    )  # fmt: skip


def choose(suite: str, asked: Sequence[str] | None) -> list[str]:
    """The methods to run, each once; None: the suite's own, without comparators that are not registered.

    Raises
    ------
    UsageError : one is unknown, and the message lists the valid ones; or it needs a comparator that is not registered.
    """
    solvers = [s.name for s in registry.all_solvers()]
    short = {
        "comparators": COMPARATORS, "solvers": tuple(solvers), "others": tuple(s for s in solvers if s != "auto"),
        "matched": tuple(f"auto={c}" for c in COMPARATORS),
    }  # fmt: skip
    own = ["comparators", "matched", *REGISTERED] if REGISTERED else []
    names = [m for a in (DEFAULTS[suite] if asked is None else asked) for m in short.get(a, (a,))]
    if asked is None:
        names = [m for m in names if m not in COMPARATORS or m in REGISTERED]
    for name in names:
        goal = parse(name)
        needed = name if goal is None else goal.like
        if needed in COMPARATORS and needed not in REGISTERED:
            raise UsageError(
                f"method {name!r} needs the comparators of the repository's own benchmark, which are not installed: in a "
                "checkout, run `python benchmarks/bench.py` with the same options"
            )
        if name != "plain" and name not in COMPARATORS and (goal is None or goal.solver not in solvers):
            raise UsageError(
                f"method {name!r} is unknown; choose {', '.join(['plain', *own, 'solvers', 'others'])}, or one of "
                f"{', '.join(sorted(solvers))}, which may be followed by a goal: auto@8%, auto=0.5, auto=ogc, auto=feng, "
                "auto@8%~close"
            )
    return list(dict.fromkeys(names))


Within = Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True)
class Comparator:
    """A way to run a case's step.

    within : the context inside which the case's model runs its step that way. It yields a key, equal for equal steps, or None
        where no key is known. It takes the case, its captured step and a plan that runs each op once; the last two may be None
        unless the comparator needs a trace.
    needs_trace : whether it starts from the captured step.
    note : makes the note of its row, from its name, the case and the context; None: the row has no note.
    """

    within: Callable[[Case, Trace | None, Plan | None], AbstractContextManager[bytes | None]]
    needs_trace: bool = False
    note: Callable[[str, Case, Within], str] | None = None


class NotApplicable(Exception):
    """The comparator cannot be set up for this model; the message says why."""


REGISTERED: dict[str, Comparator] = {}

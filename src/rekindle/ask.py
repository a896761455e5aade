"""A user's options as frozen objects, which every later plan of the same model carries whole.

`Goal` says what a plan is for, `PlanOptions` how to search for it, `TraceOptions` how to capture the step.
"""

from __future__ import annotations

import contextlib
import math
import re
import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, NamedTuple

from .compiling import CompileOptions
from .errors import UsageError
from .printed import value
from .saying.progress import Progress, listener
from .saying.sizes import MOST_BYTES, parse_bytes

if TYPE_CHECKING:
    from .model.resident import HoldsResident

LOSSES = ("auto", "all")  # see `rekindle.trace`
OFFLOADS = (False, True, "auto")  # see `rekindle.plan`
WITH_STATE = "optimizer"  # `offload` of `rekindle.checkpoint`: "auto", and the host holds the optimizer's state
EFFORTS = ("quick", "normal", "thorough")  # see `rekindle.plan`
PARITIES = ("bitwise", "close")  # see `rekindle.plan`
GRADIENTS = ("kept", "fresh", "consumed")  # see `rekindle.trace`
MOST_OVERHEAD = 1e6  # extra cost / baseline cost: a million plain steps
FORMS = "write it like '8GiB', an int of bytes, or a fraction such as 0.5 of the baseline's activation peak"


class Aim(NamedTuple):
    """A goal on one graph, as the judge and the bounds check it. With neither field: least memory at any cost.

    limit : the largest peak in bytes that is allowed, resident bytes included; None: the goal is no budget.
    max_overhead : the most extra cost / baseline cost within which least memory is asked for; None: the goal names none.
    """

    limit: int | None = None
    max_overhead: float | None = None


class Goal(ABC):
    """The aim of a plan: an object of one of the four classes below.

    Each class has one field, by which files name the goal, and says as which `Aim` it counts on a graph. A new goal is one more
    class, with the argument of `parse` and the line of `from_json` that make it.
    """

    budget: int | None = None
    fraction: float | None = None
    max_overhead: float | None = None
    least_memory: bool = False
    is_budget = False

    @abstractmethod
    def aim(self, step: HoldsResident, plain: int) -> Aim:
        """The goal on a step. plain : the activation peak of the plain one."""

    @classmethod
    def parse(
        cls, budget: str | int | float | None = None, max_overhead: float | None = None, minimize: str | None = None
    ) -> Goal:
        """The goal a user states, in Python or on the command line.

        budget : a size ("8GiB", "512MB", "123456"), an int of bytes, or a fraction in (0, 1] of the plain run's
            activation peak: a float, or a string that is a bare number with a point ("0.5"). numpy's numbers will do.

        Raises
        ------
        UsageError : no goal or several goals were given, or the goal is out of range.
        """
        given = [
            k for k, x in (("budget", budget), ("max_overhead", max_overhead), ("minimize", minimize)) if x is not None
        ]
        if len(given) != 1:
            found = "none" if not given else " and ".join(given)
            raise UsageError(f"give exactly one of budget, max_overhead and minimize; got {found}")
        if minimize is not None:
            if not isinstance(minimize, str) or minimize != "memory":
                raise UsageError(f'minimize={value(minimize)} is unknown; the one choice is "memory"')
            return LeastMemory()
        if max_overhead is not None:
            return MaxOverhead(_overhead(max_overhead))
        return _budget(budget)

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> Goal:
        """The goal that `to_json` wrote.

        Raises
        ------
        UsageError : `doc` does not hold exactly one goal, or the goal is out of range.
        """
        if doc == {"least_memory": True}:
            return LeastMemory()
        if len(doc) != 1 or not set(doc) <= {"budget", "fraction", "max_overhead"}:
            raise UsageError(f"{value(doc)} is not one goal")
        ((kind, x),) = doc.items()
        if not isinstance(x, int | float) or (kind == "fraction") != isinstance(x, float) and kind != "max_overhead":
            raise UsageError(f"{value(doc)} is no goal")
        return cls.parse(max_overhead=x) if kind == "max_overhead" else cls.parse(budget=x)

    def limit(self, step: HoldsResident, plain: int) -> int | None:
        """The largest peak in bytes that is allowed, resident bytes included; None if the goal is no budget. As `aim`."""
        return self.aim(step, plain).limit

    def to_json(self) -> dict[str, Any]:
        """The one field, by its name."""
        return dict(vars(self))


@dataclass(frozen=True)
class Budget(Goal):
    """A peak in bytes of the whole step, everything included."""

    budget: int = field()
    is_budget = True

    def aim(self, step: HoldsResident, plain: int) -> Aim:
        return Aim(limit=self.budget)


@dataclass(frozen=True)
class Fraction(Goal):
    """The activation peak as a fraction, in (0, 1], of the plain run's."""

    fraction: float = field()
    is_budget = True

    def aim(self, step: HoldsResident, plain: int) -> Aim:
        return Aim(limit=step.with_resident(int(self.fraction * plain)))


@dataclass(frozen=True)
class MaxOverhead(Goal):
    """Least memory within this extra cost (0.1: 10 %)."""

    max_overhead: float = field()

    def aim(self, step: HoldsResident, plain: int) -> Aim:
        return Aim(max_overhead=self.max_overhead)


@dataclass(frozen=True)
class LeastMemory(Goal):
    """Least memory at any cost."""

    least_memory: bool = True

    def aim(self, step: HoldsResident, plain: int) -> Aim:
        return Aim()


@dataclass(frozen=True)
class PlanOptions:
    """How a plan is searched for.

    goal : what the plan is for.
    solver : a name that `rekindle solvers` lists.
    cost : "seconds", "flops" or "unit".
    effort : "quick", "normal" or "thorough": how long `auto` searches.
    time_limit : seconds that the search may take; None: what it needs.
    seed : randomised solvers give the same plan for the same seed.
    cache : plans are remembered on disk, and read from there.
    parity : "bitwise", or "close": then a plan may add up a parameter's gradient in another order.
    or_least : where no plan keeps the budget, the one of least memory is made in its place; see `missed`.
    offload : whether values may be copied to the host: False; True; "auto", where there is a link: on a GPU, or with a target.
    host_budget : bytes that the host may hold of them; None: what the plan needs.
    progress : called with one line of text now and then; None: news and progress go to stderr; False: silence. Not saved in
        plan files.
    """

    goal: Goal
    solver: str = "auto"
    cost: str = "seconds"
    effort: str = "normal"
    time_limit: float | None = None
    seed: int = 0
    cache: bool = True
    parity: str = "bitwise"
    or_least: bool = False
    offload: bool | str = False
    host_budget: int | None = None
    progress: Progress = field(default=None, compare=False, repr=False)

    @property
    def staying(self) -> PlanOptions:
        """The same options of a search that copies nothing to the host."""
        return replace(self, offload=False, host_budget=None)

    @property
    def host_bytes(self) -> float:
        """Bytes that the host may hold of values that are copied to it; infinite where none are said."""
        return math.inf if self.host_budget is None else self.host_budget

    @property
    def report(self) -> Callable[[str], None] | None:
        """The function that takes lines of progress now; None: nobody listens. See `progress.listener`."""
        return listener(self.progress)

    def missed(self, goal: Goal) -> Goal | None:
        """The budget in place of which a plan with this goal was made, since none keeps it; None: the goal is the user's."""
        return self.goal if self.or_least and goal.least_memory and not self.goal.least_memory else None


class LastCount:
    """Stands for an optimizer that is gone. kind : its class. state_bytes : of its state, as it was counted last."""

    _of: weakref.WeakKeyDictionary[Any, LastCount] = weakref.WeakKeyDictionary()

    def __init__(self, kind: type):
        self.kind, self.state_bytes = kind, 0

    @classmethod
    def of(cls, optimizer: Any) -> LastCount:
        """The one of this optimizer."""
        made = cls(type(optimizer))
        with contextlib.suppress(TypeError):  # a wrapper that takes no weak reference
            made = cls._of.setdefault(optimizer, made)
        return made


class _Weakly:
    """A field of `TraceOptions`: an optimizer, which a plan does not keep alive, since its state is larger than the weights."""

    def __get__(self, options: Any, kind: type | None = None) -> Any:
        held = None if options is None else vars(options)["optimizer"]
        return held if not isinstance(held, tuple) else held[1] if (alive := held[0]()) is None else alive

    def __set__(self, options: Any, x: Any) -> None:
        if x is not None and not isinstance(x, str | type | LastCount):
            with contextlib.suppress(TypeError):
                x = weakref.ref(x), LastCount.of(x)
        vars(options)["optimizer"] = x


@dataclass(frozen=True)
class TraceOptions:
    """How a step is captured and costed; see `rekindle.trace`.

    loss : "auto" or "all".
    target : name of the device whose roofline gives the seconds; None: they are measured.
    attention : name of the device whose attention is captured in place of the CPU's; None: as it runs here.
    optimizer : the optimizer, class or name whose state is counted; None: no state is counted.
    must_save : names or patterns of submodules whose ops run only once.
    state_bytes : bytes of the optimizer's state that count, if they were read from a plan file; 0 where the host holds it;
        None: they follow from `optimizer`.
    unused : names of results that the training loop does not read; planned calls return None in their place.
    gradients : "kept", "fresh" or "consumed": how the training loop treats gradients.
    compile : how the parts of the model are compiled; None: nothing is compiled.
    inside : backward runs inside of the block of autocast in which forward runs.
    """

    loss: str = "auto"
    target: str | None = None
    optimizer: Any = field(default=None, compare=False, repr=False)  # a `_Weakly`
    must_save: tuple[str, ...] = ()
    state_bytes: int | None = None
    attention: str | None = None
    unused: tuple[str, ...] = ()
    gradients: str = "kept"
    compile: CompileOptions | None = None
    inside: bool = False

    @property
    def unused_by_parts(self) -> tuple[str, ...]:
        """Names of results that plans of parts leave out: stages that torch.compile runs can, other parts make all results."""
        return () if self.compile is None else self.unused


TraceOptions.optimizer = _Weakly()  # after the fields were read, of which its default is one


def _budget(given: Any) -> Goal:
    """The goal of `budget=`: bytes, or a fraction."""
    if isinstance(given, str):
        if share := re.fullmatch(r"\s*([0-9]+(?:\.[0-9]*)?)\s*%\s*", given):
            raise UsageError(f"budget={value(given)} is no size; for that share of the baseline's activation peak give "
                             f"{float(share[1]) / 100:g}")  # fmt: skip
        if not re.fullmatch(r"\s*[+-]?([0-9]+\.[0-9]*|\.[0-9]+)\s*", given):
            return Budget(parse_bytes(given))
        return Fraction(_fraction(float(given), given))
    if isinstance(given, bool):
        raise UsageError(f"budget={given} is no size; {FORMS}")
    if isinstance(given, Integral):
        if given < 0:
            raise UsageError(f"budget={value(int(given))} is no size: it is below 0; {FORMS}")
        if int(given) > MOST_BYTES:
            raise UsageError(f"budget={value(int(given))} is beyond any memory; give at most {MOST_BYTES} bytes")
        return Budget(int(given))
    if isinstance(given, Real):
        return Fraction(_fraction(given, given))
    raise UsageError(f"budget={value(given)} is no size; {FORMS}")


def _fraction(x: Any, given: Any) -> float:
    part = _float(x)
    if not 0 < part <= 1:
        raise UsageError(
            f"budget={value(given)}: a number with a point is a fraction of the baseline's activation peak, in (0, 1]; "
            f"give bytes as an int or as a string like '{part if part > 1 else 8:g}GiB'"
        )
    return part


def _overhead(x: Any) -> float:
    most = math.nan if isinstance(x, bool) or not isinstance(x, Real) else _float(x)
    if isinstance(x, Integral) and 1 < most <= MOST_OVERHEAD:
        raise UsageError(
            f"max_overhead={x} would allow {100 * most:,.0f} % extra cost; is that meant? For {x} % give {most / 100:g}, "
            f"for {100 * most:,.0f} % give {most:.1f}"
        )
    if not 0 <= most <= MOST_OVERHEAD:
        raise UsageError(
            f"max_overhead={value(x)} must be a fraction of at least 0 (0.1 means 10 % more) and at most "
            f'{MOST_OVERHEAD:g}; for the least memory at any cost give minimize="memory"'
        )
    return most


def _float(x: Any) -> float:
    """The number as a float; nan if no float can hold it."""
    try:
        return float(x)
    except (OverflowError, ValueError):
        return math.nan

"""`rekindle.status`: what is planned of a model, how often it ran, and what ran plain and why."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from torch import nn

from ...explain.modules import paths_pattern
from ...explain.screen import OnScreen, aligned, ruled, shortened, wrapped
from ...model.plan import Plan
from ...model.resident import HoldsResident
from ...parts.explaining import AGAIN
from ...saying.shares import COST_WORDS, percent
from ...saying.sizes import format_bytes
from .. import accept
from ..run.own_forward import Tally
from ..serve.planned import PlannedForward, planned_forward
from ..serve.verify import Check
from ..tensors.sharded import class_name
from ..trace import Trace
from .applied import PartsForward, forward_of, parts_forward

FORMAT = "rekindle.status/1"
ROWS_MOST = 8


@dataclass(frozen=True)
class PlanInUse:
    """One plan on a model, or equal plans of several parts.

    name : the inputs of the calls that it is for; of parts, how many there are of which class, and how they run.
    calls : that ran by it.
    peak_bytes : predicted, of the whole step with everything included; of a part, activations by itself. measured_bytes : the
        same, measured. overhead : predicted extra cost / plain cost. None: not known.
    """

    name: str
    calls: int
    peak_bytes: int | None = None
    measured_bytes: int | None = None
    overhead: float | None = None


@dataclass(frozen=True)
class RanPlain:
    """Calls that ran plain for one reason. why : the sentence that was given with the first of them."""

    why: str
    calls: int


@dataclass(frozen=True, repr=False)
class Status(OnScreen):
    """The plans of a model, and the calls that ran since. Printed, it is one screen of 80 columns.

    name : class of the model. kind : "whole", "parts", "compiled" (parts that torch.compile runs), or "none".
    calls : of the model, that ran by its plan; where it is planned in parts, that ran its parts by theirs. Calls that `verify`
        makes do not count.
    idle : calls in another mode than the plan's (`eval()`), under `no_grad`, or with nothing to train: they run as before.
    plain : why other calls ran plain; where a model is planned in parts, calls of parts. (): none did.
    plans : each plan with its calls; parts that run by equal plans are one.
    peak_bytes, plain_bytes, overhead : predicted by the plan that the model was given: of the whole step with everything
        included, of the same step without a plan, and extra cost / plain cost, in the unit `cost`.
    measured_bytes, measured_plain_bytes, seconds, plain_seconds : of the step that `checkpoint` or `verify` measured last by
        that plan, and of the plain step beside it, each timed once with the instruments on. None: not measured.
    inside : of a model without a plan, names of the submodules that have plans of their own.
    """

    name: str
    kind: str
    calls: int = 0
    idle: int = 0
    plain: tuple[RanPlain, ...] = ()
    plans: tuple[PlanInUse, ...] = ()
    peak_bytes: int | None = None
    plain_bytes: int | None = None
    overhead: float | None = None
    cost: str = "seconds"
    measured_bytes: int | None = None
    measured_plain_bytes: int | None = None
    seconds: float | None = None
    plain_seconds: float | None = None
    inside: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """The document `rekindle.status/1`."""
        return {"format": FORMAT, **{f.name: getattr(self, f.name) for f in fields(self)}} | {
            "plain": [asdict(x) for x in self.plain], "plans": [asdict(x) for x in self.plans], "inside": [*self.inside],
        }  # fmt: skip

    def __repr__(self) -> str:
        return str(self)

    def lines(self) -> list[str]:
        """The screen, line by line."""
        name = shortened(self.name, 40)
        if self.kind == "none":
            inside = (
                f" Its submodules {', '.join(self.inside)} have: ask for the status of each." if self.inside else ""
            )
            return wrapped(f"{name} has no plan: it runs as it is.{inside}")
        of = "" if self.kind == "whole" else " of parts"
        how = {"whole": "as a whole", "parts": "in parts", "compiled": "in compiled parts"}[self.kind]
        ran_plain = sum(x.calls for x in self.plain)
        lines = [
            *wrapped(f"{name}, planned {how}. Calls by the plan: {self.calls:,}; plain calls{of}: {ran_plain:,}"),
            "",
            *self._figures(),
            "",
            *self._table(),
        ]
        if self.plain:
            lines += ["", f"Plain calls{of}:"]
            lines += [line for x in self.plain for line in wrapped(f"{x.calls:,} x {x.why}")]
        if self.idle:
            lines += [
                "",
                *wrapped(f"In eval(), under no_grad, or with nothing to train, calls run as before: {self.idle:,}"),
            ]
        return lines

    def _figures(self) -> list[str]:
        predicted, measured, times = _both(self.peak_bytes, self.plain_bytes, format_bytes), "not measured", "not timed"
        if self.measured_bytes is not None:
            measured = _both(self.measured_bytes, self.measured_plain_bytes, format_bytes)
        if self.seconds is not None:
            times = _both(self.seconds, self.plain_seconds, lambda x: f"{1e3 * x:,.1f} ms")
        extra = "-" if self.overhead is None else f"{percent(self.overhead)} {COST_WORDS[self.cost]}"
        note = "rekindle.verify(model, sample) measures a step."
        if self.seconds is not None:
            note = "One step each was timed, under the instruments; time many for a figure."
        cells = [["", "predicted", "measured"], ["memory", predicted, measured], ["time", extra, times]]
        return [*aligned(cells, left=(0, 1, 2)), *wrapped(note)]

    def _table(self) -> list[str]:
        what, memory = ("inputs", "memory") if self.kind == "whole" else ("parts", "by itself")
        heads = [what, "calls", memory, f"extra {COST_WORDS[self.cost]}"]
        shown, others = self.plans[:ROWS_MOST], self.plans[ROWS_MOST:]
        cells = [[x.name, f"{x.calls:,}", _bytes(x.peak_bytes), _share(x.overhead)] for x in shown]
        if others:
            cells.append([f"{len(others)} other plans", f"{sum(x.calls for x in others):,}", "", ""])
        total = ["total", f"{sum(x.calls for x in self.plans):,}", "", ""]
        return ruled([heads, *cells, total])


def status(model: nn.Module) -> Status:
    """The plans of the model, how often they ran, which calls ran plain and why, and memory and time as predicted and as
    measured. Calls are counted from the moment on at which the model got its plan, or was copied or unpickled with it.

    Raises
    ------
    UsageError : `model` is no module.
    """
    if not isinstance(model, nn.Module):
        accept.module(model)
    if (root := parts_forward(model)) is not None:
        return _of_parts(model, root)
    if (planned := planned_forward(model)) is not None:
        return _of_whole(model, planned)
    inside = [k for k, m in model.named_modules() if k and (parts_forward(m) or planned_forward(m) or forward_of(m))]
    return Status(class_name(model), "none", inside=tuple(inside))


def _of_whole(model: nn.Module, planned: PlannedForward) -> Status:
    given = planned.plan
    check = next((b.checked for b in planned.bounds if b.plan is given and b.checked is not None), given.checked)
    found = Rows()
    for p, trace, calls, its_check in _plans(planned):
        measured = None if its_check is None else p.graph.with_resident(its_check.measured_peak_bytes)
        found.add(_inputs(trace) or "the plan", (), calls, p.peak_bytes, p.overhead, measured)
    if (left := planned.tally.ran - sum(found.calls.values())) > 0:
        found.add("plans that made room for others", (), left)
    return Status(
        class_name(model), "whole", planned.tally.ran, planned.tally.idle, _plain([planned.tally]), found.plans(()),
        given.peak_bytes, given.baseline_peak_bytes, given.overhead, given.cost, **_measured(given.graph, check),
    )  # fmt: skip


def _of_parts(model: nn.Module, root: PartsForward) -> Status:
    plan, tallies, found = root.plan, {**root.tallies}, Rows()
    calls = tallies.pop("", Tally()).ran if plan.stages else root.tally.ran
    for part in plan.parts:
        forward = None if plan.stages or root.waits else forward_of(model.get_submodule(part.path))
        if forward is not None:
            tallies[part.path] = forward.tally
        ran = tallies.get(part.path, Tally()).ran
        if isinstance(forward, PlannedForward):
            for p, trace, n, _ in _plans(forward):
                found.add(f"({p.graph.name}) {_inputs(trace)}", (part.path,), n, p.activation_peak_bytes, p.overhead)
        elif part.compiled is not None:
            found.add(f"(compiled, saves {part.compiled.saves})", (part.path,), ran)
        else:
            found.add(f"({AGAIN})", (part.path,), ran)
    for path in tallies.keys() - {p.path for p in plan.parts}:
        found.add("(compiled, not in the plan, saves inputs)", (path,), tallies[path].ran)
    every = [root.tally, *tallies.values(), *([root.tallies[""]] if "" in root.tallies else [])]
    measured = _measured(plan, root.checked) | (
        {} if root.checked is not None else {"measured_bytes": plan.measured_bytes}
    )
    return Status(
        class_name(model), "parts" if plan.captured.compile is None else "compiled", calls, root.tally.idle, _plain(every),
        found.plans([p.path for p in plan.parts]), plan.peak_bytes, plan.baseline_peak_bytes, plan.overhead, plan.cost,
        **measured,
    )  # fmt: skip


class Rows:
    """Plans in use, equal ones joined. calls : (name, peak, overhead, measured peak) of a row -> its calls."""

    def __init__(self) -> None:
        self.calls: Counter[tuple[Any, ...]] = Counter()
        self._paths: dict[tuple[Any, ...], list[str]] = {}

    def add(
        self, name: str, paths: Sequence[str], calls: int, peak: int | None = None, overhead: float | None = None,
        measured: int | None = None,
    ) -> None:  # fmt: skip
        """Add calls by one plan. paths : of the part that it runs; (): it runs the whole model."""
        key = name.strip(), peak, None if overhead is None else round(overhead, 3), measured
        self.calls[key] += calls
        self._paths.setdefault(key, []).extend(paths)

    def plans(self, every: Sequence[str]) -> tuple[PlanInUse, ...]:
        """The rows, those that ran most first. every : paths of all parts."""
        rows = []
        for key, calls in self.calls.most_common():
            name, peak, overhead, measured = key
            where = f"{paths_pattern(self._paths[key], every)} " if self._paths[key] else ""
            rows.append(PlanInUse(f"{where}{name}", calls, peak, measured, overhead))
        return tuple(rows)


def _plans(planned: PlannedForward) -> Sequence[tuple[Plan, Trace | None, int, Check | None]]:
    """Each plan on a module with its trace, how often it ran, and the check of its measured step."""
    given = planned.plan
    return [(b.plan, b.trace, b.uses, b.checked) for b in planned.bounds] or [(given, given.trace, 0, given.checked)]


def _inputs(trace: Trace | None) -> str:
    """The shapes of a call's tensors."""
    return "" if trace is None else ", ".join(str([*shape]) for shape, *_ in trace.key[0][:-1])


def _plain(tallies: Sequence[Tally]) -> tuple[RanPlain, ...]:
    found = Tally()
    for kind, (sentence, n) in [x for t in tallies for x in t.plain.items()]:
        found.plain[kind] = found.plain.get(kind, (sentence, 0))[0], found.plain.get(kind, ("", 0))[1] + n
    return tuple(RanPlain(why, n) for why, n in sorted(found.plain.values(), key=lambda x: -x[1]))


def _measured(held: HoldsResident, check: Check | None) -> dict[str, Any]:
    """The measured figures of a step. held : knows what is held during all of it."""
    if check is None:
        return {}
    plain = check.plain_peak_bytes
    return {
        "measured_bytes": held.with_resident(check.measured_peak_bytes),
        "measured_plain_bytes": None if plain is None else held.with_resident(plain),
        "seconds": check.planned_seconds, "plain_seconds": check.plain_seconds,
    }  # fmt: skip


def _both(planned: Any, plain: Any, words: Callable[[Any], str]) -> str:
    """A figure of the planned step, and the same of the plain one where it is known."""
    return "-" if planned is None else words(planned) + ("" if plain is None else f" (plain {words(plain)})")


def _bytes(n: int | None) -> str:
    return "-" if n is None else format_bytes(n)


def _share(x: float | None) -> str:
    return "-" if x is None else percent(x)

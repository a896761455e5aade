"""The plans of a model's parts under one goal."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from ..ask import Goal, PlanOptions, TraceOptions
from ..compiling import SAVES
from ..model import formats, options_file
from ..model.any_plan import AnyPlan
from ..model.graph import Graph
from ..model.plan import Plan
from ..model.resident import HoldsResident
from ..model.verdict import offer_words, takes_words
from ..printed import name
from ..saying.shares import COST_WORDS, percent
from ..saying.sizes import exceeds, format_bytes, of_bytes
from ..version import __version__

if TYPE_CHECKING:
    from .explaining import PartsExplanation

FORMAT, COMPILED = "rekindle.parts/1", "rekindle.parts/2"  # the second one of parts that torch.compile runs
COPYING = "rekindle.parts/3"  # of either kind, where something is copied to the host


@dataclass(frozen=True)
class SaveRule:
    """The rule by which a part that runs again in backward saves the results that are dear for their bytes, and recomputes
    the others.

    least : FLOPs that made one byte of a result, from which on it is saved.
    """

    least: float

    def is_valid(self) -> bool:
        """Whether the number is finite and positive: a rule that saves every result saves nothing."""
        return math.isfinite(self.least) and self.least > 0

    def to_json(self) -> dict[str, float]:
        """The rule as it stands in a file."""
        return {"least": self.least}


@dataclass(frozen=True)
class Offloaded:
    """How much of what a call of a part saves for backward is copied to the host.

    bytes : of the first saved storages that fit. stay : numbers of input tensors of the call that are not copied, since the
    parts beside it hold them too.
    """

    bytes: int
    stay: tuple[int, ...] = ()


@dataclass(frozen=True)
class CompiledPart:
    """How torch.compile runs a part.

    saves : what forward saves for backward, one of `compiling.SAVES`. held_bytes : of that. min_cut_bytes : held by the part
    compiled as it is. extra_seconds : of a step of the part, beside its fastest way. calls : in a step. kind : equal for
    parts that share what is compiled.
    """

    saves: str
    held_bytes: int = 0
    min_cut_bytes: int = 0
    extra_seconds: float = 0.0
    calls: int = 1
    kind: str = ""


@dataclass(frozen=True)
class Part:
    """One submodule, or one stage of the forward, and its plans.

    path : the name of the submodule in the model. A stage has the name of its block, "layers.3", or of the block beside it,
        "before layers.0".
    plans : one for each kind of call in a step; the first is of the first call.
    again : it cannot be captured; its forward runs again in backward, from its inputs, and it has no plans. rule : results that
        it saves besides; None: none. compiled : how torch.compile runs it, without a plan; None: it does not.
    offloaded : what is copied to the host of what each of its calls saves; None: nothing. calls : of a part that copies, in a
        step.
    """

    path: str
    plans: tuple[Plan, ...] = ()
    again: bool = False
    rule: SaveRule | None = None
    compiled: CompiledPart | None = None
    offloaded: Offloaded | None = None
    calls: int = 1


@dataclass(frozen=True)
class PartsPlan(AnyPlan, HoldsResident):
    """Plans for the parts of a model that cannot be captured whole, or for the submodules that the user names.

    module_name : class of the model. parts : in order of their first calls.
    peak_bytes : the peak of the step in a loop that holds the results, everything included; the larger one of the measured and
        the predicted. measured_bytes : as measured in one step; None where no step was measured.
    resident_bytes : held during the whole step: parameters, buffers, inputs, gradients, the optimizer's state.
    baseline_peak_bytes : measured peak of the plain step; None if it does not fit the device or was not measured.
    overhead : extra cost / cost of the parts' plain steps, in the unit `cost`: the step's overhead is at most that.
    least_overhead : certified, of a budget: no other choice among the plans that were found for the parts costs less, with
        the bytes that were measured between the parts.
    covered : one line that says which parts are planned and what runs plain.
    input_bytes : of all tensors of the call for which the goal was divided; None where a file does not say.
    keeps_caches : planned steps make key-value caches, as `config.use_cache` says, since a step without them has other bits.
    stages : paths of all stages into which the model's whole forward is cut, also those that run uncompiled, where the parts
        are stages; (): the parts are submodules.
    offer : as of a Plan.
    """

    kind: ClassVar[Literal["parts"]] = "parts"
    module_name: str
    parts: tuple[Part, ...]
    peak_bytes: int
    measured_bytes: int | None
    resident_bytes: int
    baseline_peak_bytes: int | None
    overhead: float
    least_overhead: float
    goal: Goal
    cost: str
    covered: str
    solve_seconds: float
    not_counted: str = ""
    input_bytes: int | None = None
    keeps_caches: bool = False
    stages: tuple[str, ...] = ()
    asked: PlanOptions | None = field(default=None, repr=False, compare=False)
    captured: TraceOptions = field(default_factory=TraceOptions, repr=False, compare=False)
    created_with: dict[str, str] = field(default_factory=lambda: {"rekindle": __version__})
    offer: tuple[int, float] | None = field(default=None, compare=False)

    @property
    def pieces(self) -> Sequence[tuple[str, Plan]]:
        """(path of the part, its plan), for each part and kind of call that has a plan."""
        return [(part.path, p) for part in self.parts for p in part.plans]

    def each(self, change: Callable[[Plan], Plan]) -> PartsPlan:
        """The same plans of parts, each of them changed."""
        return replace(self, parts=tuple(replace(x, plans=tuple(map(change, x.plans))) for x in self.parts))

    @property
    def options(self) -> PlanOptions:
        """The options that the plans were made with."""
        return self.asked or PlanOptions(self.goal, cost=self.cost)

    @property
    def trace_options(self) -> TraceOptions:
        """How the parts were captured."""
        return self.captured

    @property
    def host_blocks(self) -> list[int]:
        """Bytes of each block of the host's memory to which calls of parts copy what they save."""
        return [p.offloaded.bytes for p in self.parts if p.offloaded is not None for _ in range(p.calls)]

    @property
    def activation_peak_bytes(self) -> int:
        """peak_bytes without what is held during the whole step."""
        return self.beside_resident(self.peak_bytes)

    @property
    def stays_plain(self) -> bool:
        """Whether a measured step took more than the plain step, so that all parts run plain."""
        return self.captured.compile is None and exceeds(self.measured_bytes or 0, self.baseline_peak_bytes)

    @property
    def in_vain(self) -> str:
        """The words for a plan whose step takes no less than the plain one, as it was measured; "" of any other."""
        taken, plain = self.measured_bytes or self.peak_bytes, self.baseline_peak_bytes
        if plain is None or taken < plain:
            return ""
        return (
            f"saves nothing: the plain step takes {format_bytes(plain)} too, since at its peak it holds little that these "
            "parts could save" + "; all runs plain" * self.stays_plain
        )

    @property
    def sentence(self) -> str:
        """One plain sentence: does the step fit, at what price, what is covered."""
        limit, plain = self.goal.budget, self.beside_resident(self.baseline_peak_bytes or 0)
        price = f"at most {percent(self.overhead)} {COST_WORDS[self.cost]}"
        if self.captured.compile is not None:
            price += " over the fastest compiled parts"
            price = price if self.parts else "with no part compiled, in the model's own time"
        fits = (
            f"fits: {of_bytes(self.peak_bytes, limit)}"
            if limit is not None
            else takes_words(self.options.missed(self.goal), self.peak_bytes, self, plain)
        )
        if away := sum(self.host_blocks):
            price += f", {format_bytes(away)} on the host"
        tail = f"; not counted: {self.not_counted}" if self.not_counted and limit is not None else ""
        steep = [*offer_words(self.offer, self.goal, self, plain), *filter(None, [self.in_vain])]
        return f"{', '.join([fits, price, *steep])}, {self.covered}, solved in {self.solve_seconds:.1f} s{tail}"

    def _rows(self) -> list[tuple[str, str]]:
        plain = "not measured" if self.baseline_peak_bytes is None else format_bytes(self.baseline_peak_bytes)
        rows = [("peak", f"{format_bytes(self.peak_bytes)} (plain {plain})")]
        alike = Counter((p.graph.name, p.activation_peak_bytes, round(p.overhead, 3)) for _, p in self.pieces)
        for (kind, peak, overhead), n in alike.items():
            words = f"{format_bytes(peak)} by itself, {percent(overhead)} {COST_WORDS[self.cost]}"
            rows.append((f"  {n} x {name(kind)}", words))
        compiled = [p.compiled for p in self.parts if p.compiled is not None]
        for saves, n in Counter(c.saves for c in compiled).items():
            rows.append((f"  {n} x {saves}", f"saves {SAVES[saves]}"))
        return rows

    def explain(self) -> PartsExplanation:
        """Where the memory goes: per part, times its count, and in the total. Printed, one screen of 80 columns."""
        from .explaining import explain_parts  # it imports rich, which `import rekindle` does without

        return explain_parts(self)

    def figures(self) -> dict[str, Any]:
        """The figures of the plan by name."""
        keys = (
            "module_name", "peak_bytes", "measured_bytes", "resident_bytes", "baseline_peak_bytes", "overhead",
            "least_overhead", "cost", "covered", "solve_seconds", "not_counted", "input_bytes", "keeps_caches",
            "created_with",
        )  # fmt: skip
        return {k: getattr(self, k) for k in keys} | {"goal": self.goal.to_json(), "stages": [*self.stages]}

    def to_json(self) -> dict[str, Any]:
        """The document `rekindle.parts/1`, or `rekindle.parts/2` of compiled parts: every graph and every plan once, and which
        part runs by which."""
        plans = [p for p, _ in self.distinct()]
        graphs: dict[str, Graph] = {}
        for p in plans:
            graphs.setdefault(p.graph_hash, p.graph)
        number = {(p.graph_hash, p.schedule): i for i, p in enumerate(plans)}
        rows = []
        for part in self.parts:
            numbers = [number[p.graph_hash, p.schedule] for p in part.plans]
            row: dict[str, Any] = {"module": part.path, "plans": numbers}
            row |= {"again": True} if part.again else {}
            row |= {} if part.compiled is None else {"compiled": asdict(part.compiled)}
            row |= {} if part.rule is None else {"saves": part.rule.to_json()}
            rows.append(
                row | ({} if part.offloaded is None else {"offloaded": asdict(part.offloaded), "calls": part.calls})
            )
        at = {h: i for i, h in enumerate(graphs)}
        return {
            "format": COPYING if self.host_blocks else FORMAT if self.captured.compile is None else COMPILED,
            **self.figures(),
            "options": options_file.to_json(self.options, self.captured),
            "graphs": [formats.graph_to_json(g) for g in graphs.values()],
            "plans": [p.to_json() | {"graph": at[p.graph_hash]} for p in plans],
            "parts": rows,
        }

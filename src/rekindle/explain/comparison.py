"""Two plans side by side: their figures, the modules that they treat differently, and where their graphs differ."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import TYPE_CHECKING, Any, cast

from ..model.graph import Graph, Op
from ..model.op_names import op_words
from ..model.schedule import Schedule
from ..printed import name
from .holding import WORKSPACE, is_gradient, peak
from .loss import loss_ops
from .modules import paths_pattern
from .rows import Sums, forward_tree

if TYPE_CHECKING:
    from ..model.plan import Plan
    from ..parts.plan import PartsPlan

FORMAT = "rekindle.comparison/1"
FIGURES: tuple[str, ...] = (
    "peak_bytes", "activation_peak_bytes", "baseline_peak_bytes", "resident_bytes", "seconds", "overhead", "flops_overhead",
    "op_runs", "moved_bytes", "host_bytes",
    "rewritten", "bound_bytes", "gap", "least_overhead", "cost", "solver", "status", "verified", "goal",
)  # fmt: skip
FIGURES_OF_PARTS: tuple[str, ...] = (  # where at least one plan is of parts
    "peak_bytes", "activation_peak_bytes", "baseline_peak_bytes", "measured_bytes", "resident_bytes", "seconds", "overhead",
    "least_overhead", "cost", "verified", "goal", "covered",
)  # fmt: skip
KINDS = {"step": "the plan of a whole step", "parts": "plans of parts"}


@dataclass(frozen=True)
class Sizes:
    """The figures of the same modules in one plan: held from forward for backward, made again, held at the peak, time added,
    copied to the host."""

    kept_bytes: int = 0
    recomputed_bytes: int = 0
    peak_bytes: int = 0
    added_seconds: float = 0.0
    moved_bytes: int = 0

    def __add__(self, other: Sizes) -> Sizes:
        return Sizes(*(getattr(self, f.name) + getattr(other, f.name) for f in fields(self)))


@dataclass(frozen=True)
class Difference:
    """Modules that two plans treat differently. pattern : as in an `Explanation`. count : how many modules."""

    pattern: str
    count: int
    a: Sizes
    b: Sizes

    @property
    def weight(self) -> int:
        """How far apart the two are, in bytes."""
        keys = ("kept_bytes", "recomputed_bytes", "peak_bytes", "moved_bytes")
        return sum(abs(getattr(self.a, k) - getattr(self.b, k)) for k in keys)


@dataclass(frozen=True)
class Comparison:
    """Two plans side by side.

    figures : name -> (of a, of b). modules : those that differ, the largest difference first.
    graphs : one sentence for each way in which the graphs differ; () where they are the same.
    """

    a: str
    b: str
    figures: Mapping[str, tuple[Any, Any]]
    modules: tuple[Difference, ...]
    graphs: tuple[str, ...]

    def to_json(self) -> dict[str, Any]:
        """The document `rekindle.comparison/1`."""
        return {
            "format": FORMAT, "a": self.a, "b": self.b,
            "figures": {key: {"a": x, "b": y} for key, (x, y) in self.figures.items()},
            "modules": [asdict(d) for d in self.modules], "same_graph": not self.graphs, "graphs": list(self.graphs),
        }  # fmt: skip


def compare(a: Plan | PartsPlan, b: Plan | PartsPlan, names: tuple[str, str] = ("a", "b")) -> Comparison:
    """Two plans side by side, each of a whole step or of the parts of a model.

    names : how the two are called, in the answer.
    """
    keys, changed, graphs = FIGURES_OF_PARTS, tuple[Difference, ...](), tuple[str, ...]()
    if a.kind != b.kind:
        graphs = (f"{names[0]} holds {KINDS[a.kind]}, {names[1]} holds {KINDS[b.kind]}.",)
    elif a.kind == "parts":
        two = cast("PartsPlan", b)
        changed, graphs = differences(_part_sizes(a), _part_sizes(two)), _differences_of_parts(a, two, names)
    else:
        other = cast("Plan", b)
        keys, changed = FIGURES, differences(*(module_sizes(p.graph, p.schedule) for p in (a, other)))
        graphs = (*_rewritings(a, other, names), *graph_differences(a.graph, other.graph, names))
    return Comparison(*names, {key: (_figure(a, key), _figure(b, key)) for key in keys}, changed, graphs)


def _part_sizes(plan: PartsPlan) -> dict[str, tuple[int, Sizes]]:
    """pattern of the parts of one plan -> (how many, their figures)."""
    return {
        f"{r.pattern} ({r.kind})": (r.count, Sizes(r.kept_bytes, r.recomputed_bytes, 0, r.added_seconds))
        for r in plan.explain().rows
    }


def _differences_of_parts(a: PartsPlan, b: PartsPlan, names: tuple[str, str]) -> tuple[str, ...]:
    """Sentences that name the parts which only one of the plans has, and say how the graphs of the first unlike part differ."""
    here, there = ({part.path: part for part in p.parts} for p in (a, b))
    found = []
    for one, two, whose in ((here, there, names[0]), (there, here, names[1])):
        if alone := [path for path in one if path not in two]:
            found.append(f"{they_are(len(alone), 'part')} in {whose} alone: {paths_pattern(alone, list(one))}.")
    for path in here:
        pairs = zip(here[path].plans, there[path].plans, strict=False) if path in there else ()
        for p, q in pairs:
            if p.graph_hash != q.graph_hash:
                return (*found, f"Part {path} has another graph.", *graph_differences(p.graph, q.graph, names))
    return tuple(found)


def _rewritings(a: Plan, b: Plan, names: tuple[str, str]) -> list[str]:
    """Sentences on how the steps of two plans were rewritten, where that differs."""
    one, two = (() if p.rewriting is None else p.rewriting.steps for p in (a, b))
    if one == two:
        return []
    found = []
    for p, whose in ((a, name(names[0])), (b, name(names[1]))):
        if p.rewriting is None:
            found.append(f"{whose} is of the captured step.")
        else:
            found.append(f"{whose} is of a rewritten step: {p.rewriting.line()}.")
    return found


def _figure(plan: Plan | PartsPlan, key: str) -> Any:
    """A figure of a plan by its name in a comparison; None: such a plan has no such figure."""
    return plan.goal.to_json() if key == "goal" else getattr(plan, key, None)


def module_sizes(graph: Graph, schedule: Schedule) -> dict[str, tuple[int, Sizes]]:
    """pattern -> (modules, their own figures), for every module, and for the loss, gradients and workspace."""
    plain, planned = peak(graph, Schedule.baseline(graph)), peak(graph, schedule)
    loss = loss_ops(graph)
    found = {
        node.pattern or "(own ops)": (node.count, node.ops) for node in forward_tree(graph, loss).nodes() if node.ops
    }
    found["the loss"] = 1, sorted(loss)
    found["gradients, in backward"] = 1, [i for i in range(len(graph.ops)) if is_gradient(graph, i)]
    sums = Sums(graph, plain, planned)
    sizes = {}
    for pattern, (count, ops) in found.items():
        r = sums.row(pattern, "", count, ops)
        sizes[pattern] = count, Sizes(r.kept_bytes, r.recomputed_bytes, r.planned_bytes, r.added_seconds, r.moved_bytes)
    workspace = sum(h.bytes for h in planned.held if h.role == WORKSPACE)
    waits = {"waits for copies": (1, Sizes(added_seconds=planned.waited))} if planned.waited > 0 else {}
    return {**sizes, "workspace of one op": (1, Sizes(peak_bytes=workspace)), **waits}


def differences(a: Mapping[str, tuple[int, Sizes]], b: Mapping[str, tuple[int, Sizes]]) -> tuple[Difference, ...]:
    """The patterns whose figures differ, the largest difference first."""
    found = []
    for pattern in dict.fromkeys([*a, *b]):
        (n, x), (m, y) = a.get(pattern, (0, Sizes())), b.get(pattern, (0, Sizes()))
        if x != y:
            found.append(Difference(pattern, max(n, m), x, y))
    return tuple(sorted(found, key=lambda d: (-d.weight, -abs(d.a.added_seconds - d.b.added_seconds))))


def graph_differences(a: Graph, b: Graph, names: tuple[str, str]) -> tuple[str, ...]:
    """Sentences that say where two graphs differ; () where they are the same, costs included."""
    one, two = (name(n) for n in names)
    if a.hash == b.hash:
        costs = sum(_cost(x) != _cost(y) for x, y in zip(a.ops, b.ops, strict=True))
        differ = f"The graphs are the same, but {costs:,} of {len(a.ops):,} ops have other costs or workspace."
        links = (f"The graphs have other links to the host: {a.link} and {b.link}.",) if a.link != b.link else ()
        return ((differ,) if costs else ()) + (links if a.link and b.link else ())
    found = [f"{one} has {len(a.ops):,} ops ({name(a.name)}), {two} has {len(b.ops):,} ({name(b.name)})."]
    first = next(
        (i for i, (x, y) in enumerate(zip(a.ops, b.ops, strict=False)) if _structure(x) != _structure(y)), None
    )
    if first is not None:
        words = op_words(a.ops[first]), op_words(b.ops[first])
        what = (
            f"{words[0]} and {words[1]}" if words[0] != words[1] else f"{words[0]}, which reads or makes other values"
        )
        found.append(f"The first op that differs is number {first}: {what}.")
    elif len(a.ops) == len(b.ops):
        found.append("The ops are the same, and values have other sizes or are kept by other rules.")
    modules = [_modules(g) for g in (a, b)]
    for here, there, whose in ((*modules, one), (*reversed(modules), two)):
        if alone := [m for m in here if m not in there]:
            found.append(f"{they_are(len(alone), 'module')} in {whose} alone: {_some(alone)}.")
    if changed := [m for m in modules[0] if m in modules[1] and modules[0][m] != modules[1][m]]:
        found.append(f"Other ops or shapes in {len(changed):,} of the modules of both: {_some(changed)}.")
    return tuple(found)


def they_are(count: int, noun: str) -> str:
    """ "1 module is" or "2 modules are"."""
    return f"{count:,} {noun}{' is' if count == 1 else 's are'}"


def _cost(op: Op) -> tuple[float, int, int]:
    return op.seconds, op.flops, op.workspace


def _structure(op: Op) -> tuple[Any, ...]:
    return op.name, op.inputs, op.outputs, op.backward, op.recompute, op.inplace


def _modules(graph: Graph) -> dict[str, Counter[Any]]:
    """module -> its forward ops."""
    found: dict[str, Counter[Any]] = {}
    for op in graph.ops:
        if op.module and not op.backward:
            found.setdefault(op.module, Counter())[op.signature or op.name] += 1
    return found


def _some(paths: Iterable[str], most: int = 3) -> str:
    every = list(paths)
    return ", ".join(name(p) for p in every[:most]) + (", …" if len(every) > most else "")

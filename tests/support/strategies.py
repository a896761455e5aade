"""Hypothesis strategies: small random graphs of every shape, run sequences and schedules.

Seconds are multiples of 1/8, so that sums are exact in any order and results can be compared with ==.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st

from rekindle.model.graph import BOUNDARY, Graph, Link, Op, Value
from rekindle.model.schedule import Fetch, Free, Offload, Run, Schedule, Step


def examples(count: int) -> settings:
    """`@examples(400)`: as many examples in the profile "sweep", and a part of them in "test" (see conftest.py), as many
    as that profile tries by default of the 200 of "sweep"."""
    usual = settings().max_examples
    return settings(max_examples=max(3, round(count * usual / 200)))


sizes = st.integers(0, 64)
seconds = st.integers(0, 16).map(lambda k: k / 8)


class Builder:
    """Collects values and ops; costs are drawn."""

    def __init__(self, draw: st.DrawFn):
        self.draw = draw
        self.values: list[Value] = []
        self.ops: list[Op] = []

    def value(self, size: int | None = None) -> int:
        self.values.append(Value(self.draw(sizes) if size is None else size))
        return len(self.values) - 1

    def op(self, name: str, inputs: Sequence[int], outputs: Sequence[int], **fields: object) -> None:
        costs = {"seconds": self.draw(seconds), "flops": self.draw(sizes), "workspace": self.draw(st.integers(0, 8))}
        self.ops.append(Op(name, tuple(inputs), tuple(outputs), **(costs | fields)))  # type: ignore[arg-type]

    def like(self, value: int) -> int:
        """A new value as large as another: its gradient."""
        return self.value(self.values[value].bytes)


@st.composite
def dags(draw: st.DrawFn, max_ops: int = 8) -> Graph:
    """Any graph: several outputs per op, workspace, in-place writes, ops that run once, unneeded ops, no boundary."""
    b = Builder(draw)
    for _ in range(draw(st.integers(1, 2))):
        b.value()
    for i in range(draw(st.integers(1, max_ops))):
        inputs = draw(st.lists(st.integers(0, len(b.values) - 1), max_size=3))
        outputs = [b.value() for _ in range(draw(st.integers(1, 2)))]
        over = draw(st.lists(st.sampled_from(inputs), max_size=1)) if inputs else []
        b.op(f"op{i}", inputs, outputs, inplace=tuple(over), recompute=draw(st.integers(0, 4)) > 0)
    keep = draw(st.lists(st.integers(0, len(b.values) - 1), min_size=1, max_size=3, unique=True))
    return Graph(tuple(b.values), tuple(b.ops), tuple(keep), draw(sizes), "dag")


@st.composite
def joint_graphs(draw: st.DrawFn, max_ops: int = 5) -> Graph:
    """Forward, `boundary`, backward, of a random forward graph."""
    count = draw(st.integers(1, max_ops))
    edges = [draw(st.lists(st.integers(0, i), min_size=1, max_size=2, unique=True)) for i in range(count)]
    return _joint(draw, edges, "joint")


@st.composite
def chains(draw: st.DrawFn, max_ops: int = 6) -> Graph:
    """A training step of a chain of ops."""
    return _joint(draw, [[i] for i in range(draw(st.integers(1, max_ops)))], "chain")


@st.composite
def u_nets(draw: st.DrawFn, max_depth: int = 3) -> Graph:
    """A training step of an encoder, a decoder, and a skip from each level of the one to that of the other."""
    depth = draw(st.integers(1, max_depth))
    down = [[i] for i in range(depth + 1)]  # values 1 .. depth + 1, of which 1 .. depth are skipped across
    up = [[depth + 1 + i, depth - i] for i in range(depth)]
    return _joint(draw, down + up, "u-net")


def graphs() -> st.SearchStrategy[Graph]:
    """A graph of any of these shapes."""
    return st.one_of(dags(), chains(), joint_graphs(), u_nets())


def _joint(draw: st.DrawFn, edges: Sequence[Sequence[int]], name: str) -> Graph:
    """The step whose forward op i reads the values edges[i] and produces value i + 1; value 0 is the input.

    Backward op i reads the gradient of its output and some of what forward op i read and made. Gradients that meet
    are added up, in place.
    """
    b = Builder(draw)
    b.value()
    for i, inputs in enumerate(edges):
        b.op(f"f{i}", inputs, [b.value()])
    count = len(edges)
    read = {v for inputs in edges for v in inputs}
    results = [v for v in range(1, count + 1) if v not in read]
    gradients: dict[int, list[int]] = {v: [b.like(v)] for v in results}
    b.op(BOUNDARY, results, [g[0] for g in gradients.values()], seconds=0.0, recompute=False)
    for i in range(count - 1, -1, -1):
        arrived = gradients[i + 1]
        while len(arrived) > 1:
            into, other = arrived.pop(), arrived.pop()
            arrived.append(b.like(i + 1))
            b.op("add", [into, other], [arrived[-1]], inplace=(into,), backward=True)
        saved = draw(st.lists(st.sampled_from([*edges[i], i + 1]), unique=True))
        made = [b.like(v) for v in edges[i]]
        for v, gradient in zip(edges[i], made, strict=True):
            gradients.setdefault(v, []).append(gradient)
        b.op(f"b{i}", [arrived[0], *saved], made, backward=True)
    keep = [*results, *gradients[0]] if draw(st.booleans()) else gradients[0]
    return Graph(tuple(b.values), tuple(b.ops), tuple(keep), draw(sizes), name)


@st.composite
def run_sequences(draw: st.DrawFn, graph: Graph, max_extra: int = 6) -> list[int]:
    """Runs in which every op finds its inputs made before it, all that is needed runs, and much runs again."""
    runs: list[int] = []
    made = {v for v in range(len(graph.values)) if graph.arrays.producer[v] < 0}
    todo = [int(i) for i in graph.needed.nonzero()[0]]
    extra = draw(st.integers(0, max_extra))
    while todo or extra > 0:
        ready = [i for i, op in enumerate(graph.ops) if made.issuperset(op.inputs) and (op.recompute or i not in runs)]
        new = [i for i in todo if i in ready]
        if new and (extra <= 0 or draw(st.booleans())):
            i = draw(st.sampled_from(new))
        elif ready and extra > 0:
            i = draw(st.sampled_from(ready))
            extra -= 1
        else:
            break
        runs.append(i)
        made.update(graph.ops[i].outputs)
        todo = [j for j in todo if j != i]
    return runs


@st.composite
def schedules(draw: st.DrawFn, graph: Graph) -> Schedule:
    """A valid schedule, sometimes without some of the frees it could have."""
    schedule = Schedule.from_runs(graph, draw(run_sequences(graph)), "random", inplace=draw(st.booleans()))
    frees = [i for i, s in enumerate(schedule.steps) if isinstance(s, Free)]
    dropped = set(draw(st.lists(st.sampled_from(frees), max_size=2))) if frees else set()
    return Schedule(tuple(s for i, s in enumerate(schedule.steps) if i not in dropped), graph.hash, "random")


@st.composite
def schedules_with_copies(draw: st.DrawFn, graph: Graph) -> tuple[Graph, Schedule]:
    """The graph with a link, and a valid schedule in which values are copied to the host and fetched before they are needed."""
    produced = {v for op in graph.ops for v in op.outputs}
    base = draw(schedules(graph)).steps
    live, on_host, gone = set[int](), set[int](), set[int]()
    steps: list[Step] = []
    for s in base:
        op = graph.ops[s.op] if isinstance(s, Run) else None
        needed = set(op.inputs if op else [s.value]) & gone  # type: ignore[union-attr]
        steps += [Fetch(v) for v in sorted(needed)]
        gone, on_host = gone - needed, on_host - needed
        others = sorted((live - gone) - set(op.inputs if op else [s.value]))  # type: ignore[union-attr]
        for v in draw(st.lists(st.sampled_from(others), unique=True, max_size=2)) if others else []:
            steps += [] if v in on_host else [Offload(v)]
            on_host.add(v)
            if draw(st.booleans()):
                steps.append(Free(v))
                gone.add(v)
        steps.append(s)
        live |= set(op.outputs) if op else set()
        gone -= live & set(op.outputs) if op else set()
        live -= {s.into} if isinstance(s, Run) else {s.value}
    steps += [Fetch(v) for v in sorted(gone & set(graph.keep) & produced)]
    link = Link(
        *(draw(st.sampled_from([1.0, 8.0, 64.0])) for _ in range(2)), copy_s=0.0, both_at_once=draw(st.booleans())
    )
    return replace(graph, link=link), Schedule(steps, graph.hash, "copies")


@st.composite
def doubtful_schedules(draw: st.DrawFn, graph: Graph) -> Schedule:
    """A schedule that is valid or not: a valid one with steps left out, put in, doubled or exchanged; ids in range."""
    steps: list[Step] = list(draw(schedules(graph)).steps)
    ops, values = st.integers(0, len(graph.ops) - 1), st.integers(0, len(graph.values) - 1)
    any_step: st.SearchStrategy[Step] = st.one_of(ops.map(Run), values.map(Free), st.builds(Run, ops, values))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(steps)))
        what = draw(st.integers(0, 3))
        if what == 0 or not steps[at:]:
            steps.insert(at, draw(any_step))
        elif what == 1:
            del steps[at]
        elif what == 2:
            steps.insert(at, steps[at])
        else:
            other = draw(st.integers(0, len(steps) - 1))
            steps[at], steps[other] = steps[other], steps[at]
    return Schedule(tuple(steps), graph.hash, "doubtful")


@st.composite
def links(draw: st.DrawFn) -> Link:
    """A link whose copies take dyadic seconds, so that sums stay exact."""
    out, back = (float(2 ** draw(st.integers(-2, 6))) for _ in range(2))
    return Link(out, back, draw(st.sampled_from([0.0, 0.25, 2.0])), both_at_once=draw(st.booleans()))


def linked(graphs: st.SearchStrategy[Graph]) -> st.SearchStrategy[Graph]:
    """The same graphs, each with a link to the host."""
    return st.builds(lambda graph, link: replace(graph, link=link), graphs, links())


@st.composite
def copied_schedules(draw: st.DrawFn, graph: Graph) -> Schedule:
    """A valid schedule, into which copies to the host, frees of what was copied, and fetches are put wherever they may be."""
    produced = {v for op in graph.ops for v in op.outputs}
    steps: list[Step] = []
    live: set[int] = set()
    host: set[int] = set()
    coming: set[int] = set()  # values that were fetched and not needed since: the host has them still
    gone: set[int] = set()  # values that were freed here and that the schedule without copies still holds

    def needed(values: set[int]) -> None:
        host.difference_update(values & coming)
        coming.difference_update(values)

    def take(step: Step) -> None:
        steps.append(step)
        if isinstance(step, Offload):
            host.add(step.value)
        elif isinstance(step, Fetch):
            coming.add(step.value)
            live.add(step.value)
            gone.discard(step.value)
        elif isinstance(step, Free):
            needed({step.value})
            live.remove(step.value)
        else:
            needed(set(graph.ops[step.op].inputs))
            live.update(graph.ops[step.op].outputs)
            gone.difference_update(graph.ops[step.op].outputs)
            live.discard(-1 if step.into is None else step.into)

    def put_in() -> None:
        """Up to two copies or frees that may stand here."""
        for _ in range(draw(st.integers(0, 2))):
            may: list[Step] = [Offload(v) for v in sorted(live - host)]
            may += [Free(v) for v in sorted(live & host - coming)] + [Fetch(v) for v in sorted(host - coming - live)]
            if may:
                take(step := draw(st.sampled_from(may)))
                if isinstance(step, Free):
                    gone.add(step.value)

    for step in draw(schedules(graph)).steps:
        put_in()
        if isinstance(step, Free) and step.value in gone and draw(st.booleans()):
            gone.remove(step.value)
            continue
        reads = [step.value] if isinstance(step, Free) else sorted({*graph.ops[step.op].inputs} & produced)  # type: ignore[union-attr]
        for v in reads:
            if v not in live:
                take(Fetch(v))
        take(step)
    put_in()
    for v in sorted({*graph.keep} & produced - live):
        take(Fetch(v))
    return Schedule(tuple(steps), graph.hash, "random")

"""Writes the Python source of one step: a function for forward, a generator for backward.

One variable holds one storage and a `free` is a `del`, so what is live is what the judge counts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import fx

from ...model.arena import host_offsets
from ...model.graph import ACCUMULATE, COPY, OPERATOR, SNAPSHOT, Graph
from ...model.schedule import Fetch, Free, Offload, Run, Schedule, Step
from ..lowering.gradient_additions import additions, additions_of_results, casts, unaliased
from ..lowering.lowered import Lowered, OpCall
from ..operators import rules
from ..operators.node_tensors import is_member, tensors_of
from ..operators.table import OVERWRITES
from ..situation.module_paths import printable
from .expressions import Expressions, keyword_argument
from .halves import Steps, cut, last_reads, placeholders_read, read_late
from .results import handed_over

PATH_MOST_LETTERS = 200  # longer paths of modules are cut in comments


class Boundary(NamedTuple):
    """Where gradients enter backward: of all results at first; then, at each cut, of the result there: autograd adds up its
    whole gradient, and calls the hooks on it.

    stage : the first one after it. outputs : numbers of the results that it owns. sources : gradient that comes back to them,
    as backward takes it -> the place of its result in `outputs`. parts : of the gradient at a cut, those that stages before it
    hand over, in order.
    """

    stage: int
    outputs: list[int]
    sources: dict[fx.Node, int]
    parts: list[fx.Node]


@dataclass(frozen=True)
class Sums:
    """How gradients that are added up from several uses of a tensor reach autograd.

    handed_over : additions that autograd makes itself, from parts -> the placeholder whose gradient it is, or the whole
        gradient of a result.
    inside : the other additions, which the program makes.
    parts : placeholder -> number of parts, for gradients that are added up inside.
    casts : nodes that turn the gradient of a cast, a sum of `inside`, into a part of the gradient of its leaf.
    results : whole gradient of a result at which backward is cut -> the additions of it that are handed over, the last first.
    """

    handed_over: dict[fx.Node, fx.Node]
    inside: set[fx.Node]
    parts: dict[fx.Node, int]
    casts: set[fx.Node]
    results: dict[fx.Node, list[fx.Node]]

    @classmethod
    def of(cls, low: Lowered, schedule: Schedule) -> Sums:
        found = additions(low.captured)
        ran = [n for s in schedule.steps if isinstance(s, Run) and (n := low.calls[s.op].node) is not None]
        handed = handed_over(found, ran)
        parts = {p: len(nodes) + 1 for p, nodes in found.items() if nodes[0] not in handed}
        several = [cast for cast in casts(low.captured).values() if cast.adds]
        inside = {n for p in parts for n in found[p]} | {n for cast in several for n in cast.adds}
        often = Counter([*ran, *low.captured.tangents])
        results = {
            g: nodes for g, nodes in additions_of_results(low.captured).items()
            if all(often[n] == 1 for n in nodes or [low.part_of(g)[0]])  # a gradient may be handed over only once
        }  # fmt: skip
        handed |= {n: g for g, nodes in results.items() for n in nodes}
        return cls(handed, inside, parts, {cast.node for cast in several}, results)


def _behind(low: Lowered, n: fx.Node) -> Iterator[fx.Node]:
    """The tensors of which this one is a view."""
    while n in low.views and not is_member(n):
        yield (n := n.all_input_nodes[0])


class Source:
    """The lines of a program, as they are written.

    ops : number of a line, from 1 -> id of the op that it runs.
    stages : for each stage of backward, the placeholders whose gradients it puts into `out`, in order.
    read : for each stage, the placeholders that it reads. boundaries : as in `Program`.
    host_bytes : of the block in which the host holds copies of values.
    """

    def __init__(self, lowered: Lowered, schedule: Schedule, sums: Sums):
        self.low, self.halves, self.sums = lowered, cut(lowered, schedule), sums
        self.text = Expressions(lowered)
        self.lines: list[str] = []
        self.ops: dict[int, int] = {}
        self.stages: list[list[fx.Node]] = []
        self.read: list[set[fx.Node]] = []
        self._handed: list[fx.Node] = []  # in the stage that is being written
        self._reads: set[fx.Node] = set()  # of that stage
        at_cuts = {lowered.captured.inner[g].output for g in sums.results}
        # Gradients from the loss that autograd holds -> their variables, which the program does not have.
        self._outside = {t: self.text.variable(t) for t, i in lowered.captured.tangents.items() if i in at_cuts}
        others = [i for i in range(len(lowered.captured.outputs)) if i not in at_cuts]
        sources = {t: others.index(i) for t, i in lowered.captured.tangents.items() if i not in at_cuts}
        self.boundaries = [Boundary(0, others, sources, [])]
        offsets, self.host_bytes = host_offsets(lowered.graph, schedule)
        self._offsets = iter(offsets)
        self._copying: set[int] = set()  # values whose copy to the host has begun and that have not been freed since
        self._coming: set[int] = set()  # values that have been fetched and not been needed since
        self._write_forward()
        self._write_backward()

    @property
    def _graph(self) -> Graph:
        return self.low.graph

    # -- the two halves ----------------------------------------------------------------------------------------------
    def _write_forward(self) -> None:
        captured, halves = self.low.captured, self.halves
        given = [p for p in captured.placeholders if p.op == "placeholder"]
        self.lines += ["def forward(inputs, rng):", f"    {_unpack(map(self.text.variable, given), 'inputs')}"]
        self.lines += self._from_step()
        cloned = set(halves.saved) | read_late(self.low, halves.forward)
        cloned |= {s.value for s in halves.forward if isinstance(s, Offload)}
        ran: set[int] = set()
        for s in halves.forward:
            self._await(s)
            if not isinstance(s, Run):
                self._of_value(s)
                continue
            self._run(s, cloned, first=s.op not in ran)
            ran.add(s.op)
        results = ", ".join(self.text.tensor(o, False) for o in captured.outputs)
        # A parameter's very tensor would show backward other memory if `.data` were set; eager's views of it do not either.
        kept = [*self._saved_values(), *(f"{self.text.variable(p)}.detach()" for p in halves.read)]
        kept += map(self.text.variable, halves.itself)
        self.lines += [f"    return [{results}], [{', '.join(kept)}]", ""]

    def _write_backward(self) -> None:
        self.text.in_backward = True
        captured, halves, sums = self.low.captured, self.halves, self.sums
        kept = [*self._saved_values(), *map(self.text.variable, halves.read), *map(self.text.itself, halves.itself)]
        self.lines += [
            "def backward(saved, tangents, rng, out, retain, apart):",
            f"    {_unpack(kept, 'saved')}",
            f"    {_unpack(map(self.text.variable, self.boundaries[0].sources), 'tangents')}",
            *self._from_step(),
        ]
        whole: dict[fx.Node, list[fx.Node]] = {}  # op -> the gradients that are whole after it
        for g, nodes in sums.results.items():
            whole.setdefault(nodes[0] if nodes else self.low.part_of(g)[0], []).append(g)
        for t in captured.tangents:
            self._cut(whole.get(t, []), halves.backward)
        assert self._graph.boundary is not None
        tangents = self._graph.ops[self._graph.boundary].outputs
        for s in halves.dropped:
            assert isinstance(s, Free)
            self._await(s)
            if s.value in tangents:
                self._delete(s.value)
            else:
                self._gone(s.value)
        untouched = set(halves.saved)  # copies that forward made
        last_read = last_reads(self.low, halves.backward)
        for i, s in enumerate(halves.backward):
            self._await(s)
            if not isinstance(s, Run):
                self._of_value(s)
                continue
            call = self.low.calls[s.op]
            placeholder = None if call.node is None else sums.handed_over.get(call.node)
            if call.kind != ACCUMULATE and placeholder is None:
                self._end_stage()
            self._reads |= {p for p, _ in placeholders_read(self.low, s.op)}
            if call.kind == ACCUMULATE:
                assert call.node is not None
                if call.node not in sums.handed_over.values():
                    self.lines.append(f"    out.append({self.text.tensor(captured.gradients[call.node], False)})")
                    self._handed.append(call.node)
                if s.into is not None:
                    self._delete(s.into)
            elif placeholder is not None:
                later = halves.backward[i + 1 :] if placeholder in sums.results else ()
                self._handed += [placeholder] * self._hand_over(s, call, later)
            else:
                self._run(s, saved=untouched)
                untouched -= {*self._graph.ops[s.op].outputs, s.into}
            if call.kind == OPERATOR and call.node in whole:
                self._cut(whole[call.node], halves.backward[i + 1 :])
            for v in last_read.get(i, []):  # from here on this gradient belongs to the caller
                self._delete(v)
        self._end_stage()

    def _end_stage(self) -> None:
        if self._handed:
            self.lines.append("    yield")
            self.stages.append(self._handed)
            self.read.append(self._reads)
            self._handed, self._reads = [], set()

    def _cut(self, gradients: Iterable[fx.Node], later: Steps) -> None:
        """Let autograd add up whole gradients of results, and go on with what it and hooks make of them."""
        for g in gradients:
            nodes, part = self.sums.results[g], self.low.part_of(g)
            parts: list[Any] = [n.args[1] for n in reversed(nodes)]
            if not nodes:
                parts = [g]
                alone = all(len(n.users) == 1 for n in _behind(self.low, g))
                shown = self._to_autograd(g, self.text.tensor(g, False), () if alone else later)
                self.lines.append(f"    out.append({shown})")
                self.lines += [f"    {self.text.name_of(part)} = None"] * alone
                self._handed.append(g)
            elif unaliased(nodes[-1].args[0]) not in self._outside:
                parts.insert(0, nodes[-1].args[0])
            self._end_stage()
            self.boundaries.append(Boundary(len(self.stages), [self.low.captured.inner[g].output], {g: 0}, parts))
            name = self.text.name_of(part)
            if g is not part[0] and not (is_member(g) and g.args[0] is part[0]):
                name = self.text.totals[g] = f"{name}_r{self.low.captured.inner[g].output}"
            over = any(isinstance(s, Run) and s.into == self.low.value_of[part] for s in later)
            taken = f"alone(tangents, {g.meta['val'].stride()})" if over else "tangents.pop()"
            self.lines.append(f"    {name} = {taken}")

    # -- one step ----------------------------------------------------------------------------------------------------
    def _run(self, s: Run, cloned: Container[int] = (), saved: Container[int] = (), first: bool = False) -> None:
        """A run of an op. cloned : snapshots that a later op reads after the mutation, so that they must be copies. saved :
        values that forward saved and that nothing has been written over yet. first : the op has not run before; else it draws
        the random numbers of its first run."""
        call = self.low.calls[s.op]
        n = call.node
        assert n is not None
        if call.kind == COPY:
            written = self.text.tensor(self.low.captured.mutations[n], False)
            self.lines.append(f"    copy_({self.text.variable(n)}, {written})")
            return
        if call.kind == SNAPSHOT:
            value, variable = self._graph.ops[s.op].outputs[0], self.text.tensor(n, False)
            shown = f"clone({variable})" if value in cloned else variable
            self.lines.append(f"    {self.text.variables(value)[0]} = {shown}")
            return
        self.ops[len(self.lines) + 1] = s.op
        name, arguments = self._function_and_arguments(s, call, saved, first)
        if s.op in self.halves.replayed:
            arguments = ["rng", str(s.op), repr(str(tensors_of(n)[0][1].device)), name, *arguments]
            name = "draw" if first else "replay"
        shown = f"{name}({', '.join(arguments)})"
        note = self._note(n)
        names = {i: self.text.name_of((n, i)) for i, _ in tensors_of(n) if (n, i) in self.low.value_of}
        if not names:
            self.lines.append(f"    {shown}{note}")
        elif isinstance(n.meta["val"], torch.Tensor):
            self.lines.append(f"    {names[0]} = {shown}{note}")
        else:
            members = [names.get(i, "_") for i in range(len(n.meta["val"]))]
            self.lines.append(f"    {', '.join(members)}, = {shown}{note}")
            if "_" in members:
                self.lines.append("    del _")
        if s.into is not None:
            self._delete(s.into)

    def _function_and_arguments(
        self, s: Run, call: OpCall, saved: Container[int], first: bool
    ) -> tuple[str, list[str]]:
        """(source of the function, sources of its arguments)."""
        n = call.node
        assert n is not None
        target: Any = n.target
        args: Any = n.args
        if first and n in self.low.captured.writing:
            target, args = self.low.captured.writing[n]
        name = self.text.function(self.low.writes.over.get(n) or rules.runnable(target))
        if s.into is not None:
            position = call.over[s.into]
            over = self.text.function(OVERWRITES[target][position], f"{name}_over{position}")
            name = f"({name} if retain else {over})" if s.into in saved else over
        if n in self.sums.inside:
            name = f"(join if apart else {name})"
        if n in self.sums.casts:
            name = f"(each({name}) if apart else {name})"
        arguments = [self.text.argument(a, n) for a in args]
        return name, arguments + [keyword_argument(k, self.text.argument(a, n)) for k, a in n.kwargs.items()]

    def _hand_over(self, s: Run, call: OpCall, later: Steps) -> int:
        """Give autograd the parts that an addition would add; returns how many parts there are."""
        assert call.node is not None
        so_far, part = call.node.args
        before, handed = unaliased(so_far), self.sums.handed_over
        # An addition that makes another gradient is a part as a whole.
        there = before in self._outside or before in handed and handed[before] is handed[call.node]
        parts = [part] if there else [so_far, part]
        shown = [self._to_autograd(x, self.text.argument(x, call.node), later) for x in parts]
        self.lines += [f"    out.append({x})" for x in shown]
        self.lines.append(f"    {self.text.name_of((call.node, 0))} = None")
        if s.into is not None:
            self._delete(s.into)
        return len(parts)

    def _to_autograd(self, n: Any, shown: str, later: Steps) -> str:
        """Source of a gradient that autograd may hold on to. later : the steps that follow, of which one may write over it."""
        value = self.low.value_of[self.low.part_of(n)]
        if any(isinstance(s, Run) and s.into == value for s in later):
            return f"clone({shown})"
        return f"own({shown})" if n in self.low.views else shown

    # -- copies to the host --------------------------------------------------------------------------------------------
    def _of_value(self, s: Free | Offload | Fetch) -> None:
        """A step that is no run."""
        names = self.text.variables(s.value)
        if isinstance(s, Free):
            self._gone(s.value)
            self._delete(s.value)
        elif isinstance(s, Offload):
            offset, size = next(self._offsets), self._graph.values[s.value].bytes
            if names:
                self.lines.append(f"    away.send({s.value}, {offset}, {size}, {self._again}, {', '.join(names)})")
                self._copying.add(s.value)
        elif names:
            self.lines.append(f"    {', '.join(names)}, = away.fetch({s.value}, {self._again})")
            self._coming.add(s.value)

    def _gone(self, value: int) -> None:
        """Wait for the copy of a value that is freed."""
        if value in self._copying:
            self._copying.discard(value)
            self.lines.append(f"    away.gone({value})")

    def _await(self, s: Step) -> None:
        """Wait for the fetched values that a step needs."""
        needed = (
            {s.value} if isinstance(s, Free) else set(self._graph.ops[s.op].inputs) if isinstance(s, Run) else set()
        )
        for v in sorted(self._coming & needed):
            self._coming.discard(v)
            self.lines.append(f"    away.arrived({v}, {self._again})")

    @property
    def _again(self) -> str:
        """Whether another backward may fetch a value once more."""
        return "retain" if self.text.in_backward else "False"

    def _delete(self, value: int) -> None:
        totals = [x for x in self.text.totals.values() if x.startswith(f"v{value}_")]
        if names := [x for x in self.text.variables(value) if x not in self._outside.values()] + totals:
            self.lines.append(f"    del {', '.join(names)}")

    # -- small things ------------------------------------------------------------------------------------------------
    def _saved_values(self) -> list[str]:
        """Variables of the values that forward hands to backward."""
        return [x for v in self.halves.saved for x in self.text.variables(v)]

    def _from_step(self) -> list[str]:
        numbers = ["    numbers = rng['numbers']"] if self.low.captured.numbers.markers else []
        return [*numbers, "    away = rng['away']"] if self.host_bytes else numbers

    def _note(self, n: fx.Node) -> str:
        """A comment that names the module whose op it is."""
        path = printable(self.low.captured.module_path.get(n, ""))
        path = path if len(path) <= PATH_MOST_LETTERS else f"…{path[-PATH_MOST_LETTERS:]}"
        return f"  # {path}" if path else ""


def _unpack(names: Iterable[str], given: str) -> str:
    """A line that takes a list apart and empties it."""
    left = list(names)
    return f"{', '.join(left)}, = {given}; {given}.clear()" if left else f"{given}.clear()"

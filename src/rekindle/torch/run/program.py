"""Schedule -> readable Python source for the forward and the backward of one step.

Forward is a function; backward is a generator that yields at the end of each stage, when the gradients finished since
the last stage lie in `out`. One variable holds one storage and a `free` is a `del`, so what is live is what the judge
says.
"""

from __future__ import annotations

import itertools
import keyword
import linecache
import math
import re
import weakref
from collections import Counter
from collections.abc import Callable, Container, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx

from ...errors import RekindleError
from ...model.graph import ACCUMULATE, Graph
from ...model.schedule import Free, Run, Schedule
from ..capture import rng, rules
from ..capture.lowered import Lowered, OpCall
from ..capture.module_paths import printable
from ..capture.node_tensors import is_member, tensors_of
from ..capture.overwrites import OVERWRITES
from ..capture.private import OpOverload
from .uses import additions, handed_over, join, source

_LITERALS = (bool, int, str, type(None))  # these types themselves: a subclass may print as anything
_LOCALS = ("forward", "backward", "inputs", "saved", "tangents", "rng", "out", "retain", "apart", "members", "numbers")
_VARIABLE = re.compile(r"v\d|x_|c\d|__")  # what names of variables and constants begin with
_LONGEST = 200  # characters of a module's name in a comment
_number = itertools.count(1)  # of programs in this process


@dataclass
class Program:
    """The two halves of a step, compiled from `source`.

    forward(inputs, rng) -> (results, saved): `inputs` is one tensor per placeholder (emptied), `rng` a dict.
    backward(saved, tangents, rng, out, retain, apart): a generator; both lists are emptied. Each `next` runs one stage.
        `retain`: another backward may follow, so nothing is written over what forward saved. `apart`: a gradient that is
        added up from several uses comes as a tuple of its parts.
    stages : per stage the placeholders whose gradients it puts into `out`, in order; one that is handed over in parts stands
        there once for each part.
    whole : placeholder -> parts of a gradient that is added up from several uses and comes whole, unless `apart` is asked for.
    file : the name under which tracebacks find the source, as long as the program lives.
    ops : line of the source, from 1 -> id of the op that it runs.
    """

    source: str
    forward: Callable[[list[Any], dict[int | str, Any]], tuple[list[Any], list[Any]]]
    backward: Callable[[list[Any], list[Any], dict[int | str, Any], list[Any], bool, bool], Iterator[None]]
    stages: list[list[fx.Node]]
    whole: dict[fx.Node, int] = field(default_factory=dict)
    file: str = ""
    ops: dict[int, int] = field(default_factory=dict)


def build(lowered: Lowered, schedule: Schedule) -> Program:
    """The program that runs `schedule`.

    Raises
    ------
    RekindleError : the schedule runs random ops of forward in another order than the model does.
    """
    return _Writer(lowered, schedule).write()


@dataclass
class _Writer:
    low: Lowered
    schedule: Schedule
    env: dict[str, Any] = field(default_factory=dict)
    names: dict[Any, str] = field(default_factory=dict)
    lines: list[str] = field(default_factory=list)
    ops: dict[int, int] = field(default_factory=dict)
    additions: set[fx.Node] = field(default_factory=set)  # of what comes to one parameter or input
    handed_over: dict[fx.Node, fx.Node] = field(default_factory=dict)  # additions that autograd does -> placeholder

    @property
    def graph(self) -> Graph:
        return self.low.graph

    def write(self) -> Program:
        steps = self.schedule.steps
        cut = next(i for i, s in enumerate(steps) if isinstance(s, Run) and s.op == self.graph.boundary)
        after = cut + 1
        while after < len(steps) and isinstance(steps[after], Free):
            after += 1
        forward, dropped, backward = steps[:cut], steps[cut + 1 : after], steps[after:]
        self._check_random_order(forward, backward)
        saved = self._live_after(forward, dropped)
        used = self._placeholders_read(backward)
        replayed = self._replayed()
        found = additions(self.low.captured)
        ran = [n for s in steps if isinstance(s, Run) and (n := self.low.calls[s.op].node) is not None]
        self.handed_over = handed_over(found, ran)
        whole = {p: len(nodes) + 1 for p, nodes in found.items() if nodes[0] not in self.handed_over}
        self.additions = {n for p in whole for n in found[p]}
        self.env["copy_"] = torch.ops.aten.copy_.default
        self.env["clone"] = torch.ops.aten.clone.default
        self.env["rng_state"], self.env["replay"] = rng.state, rng.replay
        self.env["join"] = join
        self._write_forward(forward, saved, used, replayed)
        stages = self._write_backward(backward, saved, used, dropped, replayed)
        source = "\n".join(self.lines) + "\n"
        file = f"<rekindle plan {self.schedule.graph_hash[:8]}, program {next(_number)}>"
        exec(compile(source, file, "exec"), self.env)
        program = Program(source, self.env["forward"], self.env["backward"], stages, whole, file, self.ops)
        # Tracebacks show the line, and so the op and the module in its comment.
        linecache.cache[file] = (len(source), None, source.splitlines(keepends=True), file)
        weakref.finalize(program, linecache.cache.pop, file, None)
        return program

    # -- what crosses the boundary ---------------------------------------------------------------------------------
    def _live_after(self, forward: tuple[Any, ...], dropped: tuple[Any, ...]) -> list[int]:
        live: dict[int, None] = {}
        for s in forward:
            if isinstance(s, Free):
                live.pop(s.value)
            else:
                live |= dict.fromkeys(self.graph.ops[s.op].outputs)
                if s.into is not None:
                    live.pop(s.into)
        for s in dropped:
            live.pop(s.value, None)
        return [v for v in live if self.low.parts[v] or v in self.low.snapshots.values()]

    def _placeholders_read(self, backward: tuple[Any, ...]) -> list[fx.Node]:
        found: dict[fx.Node, None] = {}
        for s in backward:
            if isinstance(s, Run):
                call = self.low.calls[s.op]
                node = self.low.captured.gradients[call.node] if call.kind == ACCUMULATE else call.node  # type: ignore[index]
                if node is not None:
                    found |= dict.fromkeys(self._leaves(node, call.kind == ACCUMULATE))
        return [p for p in self.low.captured.placeholders if p in found and p.op == "placeholder"]

    def _leaves(self, node: fx.Node, itself: bool) -> Iterator[fx.Node]:
        """Placeholders that the arguments of a call are views of."""
        stack = [node] if itself else list(node.all_input_nodes)
        swaps = node in self.low.reads_snapshot
        while stack:
            n = stack.pop()
            if n.op == "placeholder" and n not in self.low.captured.tangents:
                if not (swaps and n in self.low.snapshots):
                    yield n
            elif n in self.low.views:
                stack += n.all_input_nodes

    def _replayed(self) -> set[int]:
        twice = [o for o, times in Counter(self.schedule.runs).items() if times > 1]
        return {o for o in twice if (n := self.low.calls[o].node) is not None and rules.draws_random(n.target)}

    def _check_random_order(self, forward: tuple[Any, ...], backward: tuple[Any, ...]) -> None:
        """Each half draws what the model draws there, in the model's order."""
        ops = self.graph.ops
        drawing = [o for o, c in enumerate(self.low.calls) if c.node is not None and rules.draws_random(c.node.target)]
        draws = set(drawing)
        ran = dict.fromkeys(s.op for steps in (forward, backward) for s in steps if isinstance(s, Run))
        early = {s.op for s in forward if isinstance(s, Run)}
        if [o for o in ran if o in draws] != drawing or any((o in early) == ops[o].backward for o in drawing):
            raise RekindleError("the schedule draws random numbers in another order than the model; it cannot be run")

    # -- source ----------------------------------------------------------------------------------------------------
    def _write_forward(self, steps: tuple[Any, ...], saved: list[int], used: list[fx.Node], replayed: set[int]) -> None:
        c = self.low.captured
        given = [p for p in c.placeholders if p.op == "placeholder"]
        self.lines += ["def forward(inputs, rng):", f"    {self._unpack(map(self._var, given), 'inputs')}"]
        self.lines += self._numbers()
        cloned = set(saved) | self._read_late(steps)
        ran: set[int] = set()
        for s in steps:
            if isinstance(s, Free):
                self._delete(s.value)
                continue
            call = self.low.calls[s.op]
            if s.op in replayed and s.op not in ran:
                self.lines.append(f"    rng[{s.op}] = rng_state({self._device(call)!r})")
            self._run(s, call, replay=s.op in ran and s.op in replayed, cloned=cloned, first=s.op not in ran)
            ran.add(s.op)
        results = ", ".join(self._tensor(o, False) for o in c.outputs)
        keep = ", ".join([*(x for v in saved for x in self._variables(v)), *map(self._var, used)])
        self.lines += [f"    return [{results}], [{keep}]", ""]

    def _read_late(self, steps: tuple[Any, ...]) -> set[int]:
        """Snapshots that forward reads after the mutation: solvers may move that to before the readers."""
        mutated: set[int] = set()
        late: set[int] = set()
        for s in steps:
            if isinstance(s, Run):
                late |= mutated.intersection(self.graph.ops[s.op].inputs)
                call = self.low.calls[s.op]
                if call.kind == "copy_" and call.node in self.low.snapshots:
                    mutated.add(self.low.snapshots[call.node])
        return late

    def _write_backward(
        self,
        steps: tuple[Any, ...],
        saved: list[int],
        used: list[fx.Node],
        dropped: tuple[Any, ...],
        replayed: set[int],
    ) -> list[list[fx.Node]]:
        names = [*(x for v in saved for x in self._variables(v)), *map(self._var, used)]
        tangents = [self._var(t) for t in self.low.captured.tangents]
        self.lines += [
            "def backward(saved, tangents, rng, out, retain, apart):",
            f"    {self._unpack(names, 'saved')}",
            f"    {self._unpack(tangents, 'tangents')}",
            *self._numbers(),
        ]
        forward_made = {v for v in range(len(self.graph.values)) if v not in self._tangent_values()}
        for s in dropped:
            if s.value not in forward_made:
                self._delete(s.value)
        stages: list[list[fx.Node]] = []
        handed: list[fx.Node] = []
        untouched = set(saved)  # copies that forward made
        last_read = self._last_reads(steps)
        for i, s in enumerate(steps):
            if isinstance(s, Free):
                self._delete(s.value)
                continue
            call = self.low.calls[s.op]
            placeholder = None if call.node is None else self.handed_over.get(call.node)
            if call.kind != ACCUMULATE and placeholder is None and handed:
                self.lines.append("    yield")
                stages.append(handed)
                handed = []
            if call.kind == ACCUMULATE:
                assert call.node is not None
                if call.node not in self.handed_over.values():
                    self.lines.append(f"    out.append({self._tensor(self.low.captured.gradients[call.node], False)})")
                    handed.append(call.node)
            elif placeholder is not None:
                handed += [placeholder] * self._hand_over(s, call)
            else:
                self._run(s, call, replay=s.op in replayed, cloned=set(), saved=untouched)
                untouched -= {*self.graph.ops[s.op].outputs, s.into}
            for v in last_read.get(i, []):  # a gradient that stays belongs to the caller from here on
                self._delete(v)
        if handed:
            self.lines.append("    yield")
            stages.append(handed)
        return stages

    def _hand_over(self, s: Run, call: OpCall) -> int:
        """Give autograd what an addition would add; how many parts that are."""
        assert call.node is not None
        so_far, part = call.node.args
        parts = [part] if source(so_far) in self.handed_over else [so_far, part]
        self.lines += [f"    out.append({self._argument(x, call.node)})" for x in parts]
        self.lines.append(f"    {self.names_of((call.node, 0))} = None")
        if s.into is not None:
            self._delete(s.into)
        return len(parts)

    def _numbers(self) -> list[str]:
        return ["    numbers = rng['numbers']"] if self.low.captured.numbers.markers else []

    def _tangent_values(self) -> set[int]:
        assert self.graph.boundary is not None
        return set(self.graph.ops[self.graph.boundary].outputs)

    def _last_reads(self, steps: tuple[Any, ...]) -> dict[int, list[int]]:
        kept = {v for v in self.graph.keep if self.low.parts[v] and self.graph.arrays.producer[v] >= 0}
        rows: dict[int, list[int]] = {}
        for i in range(len(steps) - 1, -1, -1):
            s = steps[i]
            if isinstance(s, Run):
                for v in self.graph.ops[s.op].inputs:
                    if v in kept:
                        kept.discard(v)
                        rows.setdefault(i, []).append(v)
        return rows

    def _run(
        self, s: Run, call: OpCall, replay: bool, cloned: set[int], saved: Container[int] = (), first: bool = False
    ) -> None:
        n = call.node
        assert n is not None
        op = self.graph.ops[s.op]
        if call.kind == "copy_":
            self.lines.append(f"    copy_({self._var(n)}, {self._tensor(self.low.captured.mutations[n], False)})")
            return
        if call.kind == "snapshot":
            # A copy is needed only where somebody reads it after the mutation.
            source = f"clone({self._var(n)})" if op.outputs[0] in cloned else self._var(n)
            self.lines.append(f"    {self._variables(op.outputs[0])[0]} = {source}")
            return
        where = printable(self.low.captured.module_path.get(n, ""))
        where = where if len(where) <= _LONGEST else f"…{where[-_LONGEST:]}"
        note = f"  # {where}" if where else ""
        self.ops[len(self.lines) + 1] = s.op
        target: Any = n.target
        args: Any = n.args
        if first and n in self.low.captured.writing:
            target, args = self.low.captured.writing[n]
        name = self._function(rules.runnable(target))
        if s.into is not None:
            position = call.over[s.into]
            over = self._function(OVERWRITES[target][position], f"{name}_over{position}")
            name = f"({name} if retain else {over})" if s.into in saved else over
        if n in self.additions:
            name = f"(join if apart else {name})"
        arguments = [self._argument(a, n) for a in args] + [
            _keyword(k, self._argument(a, n)) for k, a in n.kwargs.items()
        ]
        if replay:
            text = f"replay({', '.join([f'rng[{s.op}]', repr(self._device(call)), name, *arguments])})"
        else:
            text = f"{name}({', '.join(arguments)})"
        members = [(i, self.names_of((n, i))) for i, _ in tensors_of(n) if (n, i) in self.low.value_of]
        if not members:
            self.lines.append(f"    {text}{note}")
        elif isinstance(n.meta["val"], torch.Tensor):
            self.lines.append(f"    {members[0][1]} = {text}{note}")
        else:
            picks = ", ".join(f"members[{i}]" for i, _ in members)
            self.lines.append(f"    members = {text}{note}")
            self.lines.append(f"    {', '.join(x for _, x in members)} = {picks}")
            self.lines.append("    del members")
        if s.into is not None:
            self._delete(s.into)

    def _delete(self, value: int) -> None:
        if names := self._variables(value):
            self.lines.append(f"    del {', '.join(names)}")

    def _unpack(self, names: Any, source: str) -> str:
        names = list(names)
        return f"{', '.join(names)}, = {source}; {source}.clear()" if names else f"{source}.clear()"

    def _device(self, call: OpCall) -> str:
        assert call.node is not None
        return str(tensors_of(call.node)[0][1].device)

    # -- expressions -----------------------------------------------------------------------------------------------
    def _variables(self, value: int) -> list[str]:
        if value in self.low.snapshots.values():
            return [f"v{value}"]
        return [self.names_of(p) for p in self.low.parts[value]]

    def names_of(self, part: tuple[fx.Node, int]) -> str:
        value = self.low.value_of[part]
        k = self.low.parts[value].index(part)
        return f"v{value}" if k == 0 else f"v{value}_{k}"

    def _var(self, placeholder: fx.Node) -> str:
        return self.names_of((placeholder, 0)) if (placeholder, 0) in self.low.value_of else f"x_{placeholder.name}"

    def _function(self, target: Any, like: str | None = None) -> str:
        if target not in self.names:
            base = like or (target._schema.name.split("::")[-1] if isinstance(target, OpOverload)
                            else str(getattr(target, "__name__", "f")))  # fmt: skip
            self.names[target] = self._new_name(base)
            self.env[self.names[target]] = target
        return self.names[target]

    def _new_name(self, like: str) -> str:
        """An identifier that nothing else in the source bears."""
        base = "".join(ch if ch.isascii() and ch.isalnum() else "_" for ch in like)
        if not base.isidentifier() or keyword.iskeyword(base) or _VARIABLE.match(base):
            base = f"op_{base}"
        names = itertools.chain([base], (f"{base}_{k}" for k in itertools.count(2)))
        return next(x for x in names if x not in self.env and x not in _LOCALS)

    def _constant(self, x: Any) -> str:
        key = ("constant", id(x))
        if key not in self.names:
            self.names[key] = f"c{len(self.env)}"
            self.env[self.names[key]] = x
        return self.names[key]

    def _argument(self, x: Any, reader: fx.Node | None, swap: bool = False) -> str:
        if isinstance(x, fx.Node):
            return self._tensor(x, swap or reader in self.low.reads_snapshot)
        if type(x) in (int, float) and x in self.low.captured.numbers.markers:
            return f"numbers[{list(self.low.captured.numbers.markers).index(x)}]"
        if type(x) in _LITERALS or type(x) is float and math.isfinite(x):
            return repr(x)
        if isinstance(x, list | tuple):
            inside = ", ".join(self._argument(y, reader, swap) for y in x)
            return f"[{inside}]" if isinstance(x, list) else f"({inside}{',' if len(x) == 1 else ''})"
        if isinstance(x, dict):
            return (
                "{"
                + ", ".join(f"{self._argument(k, None)}: {self._argument(y, reader, swap)}" for k, y in x.items())
                + "}"
            )
        return self._constant(x)

    def _tensor(self, n: Any, swap: bool) -> str:
        """Source of the tensor a node stands for; `swap`: a mutated placeholder is read from its snapshot."""
        if not isinstance(n, fx.Node):
            return self._argument(n, None)
        if n.op == "get_attr":
            return self._constant(self.low.captured.constants[n])
        if n.op == "placeholder":
            return f"v{self.low.snapshots[n]}" if swap and n in self.low.snapshots else self._var(n)
        if n.target in rules.PASS_THROUGH:
            return self._tensor(n.args[0], swap)
        if is_member(n):
            part: Any = (n.args[0], n.args[1])
            if part in self.low.value_of:
                return self.names_of(part)
            if one := rules.one_view(*part):
                target, (base, *rest) = one
                return f"{self._function(target)}({', '.join(self._argument(x, None, swap) for x in (base, *rest))})"
            return f"{self._tensor(part[0], swap)}[{self._argument(part[1], None)}]"
        if (n, 0) in self.low.value_of and isinstance(n.meta.get("val"), torch.Tensor):
            return self.names_of((n, 0))
        if n not in self.low.views:
            val = n.meta.get("val")
            members = [self.names_of((n, i)) if (n, i) in self.low.value_of else "None" for i in range(len(val or ()))]
            return f"({', '.join(members)},)"
        target = n.target
        if target is torch.ops.aten.view.default:
            # The loss may give an expanded gradient, and kernels lay results out otherwise than torch's shape rules say:
            # where there is no such view, eager has copied.
            target = torch.reshape
        parts = [self._argument(a, None, swap) for a in n.args]
        parts += [_keyword(k, self._argument(a, None, swap)) for k, a in n.kwargs.items()]
        return f"{self._function(target)}({', '.join(parts)})"


def _keyword(name: str, value: str) -> str:
    """A keyword argument in a call."""
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f"{name}={value}" if plain else f"**{{{str(name)!r}: {value}}}"

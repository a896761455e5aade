"""Notes when the parts of a model run in one step."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch
from torch.autograd.graph import get_gradient_edge

from ..compiled.compiled_forward import CompiledForward
from ..compiled.compiler import is_compiled
from ..measure.memory import Levels
from ..private import will_run
from ..run.execute import boundary_of, last_stage_of
from ..run.own_forward import forward_instead
from ..serve.planned import PlannedForward
from ..tensors import tree
from ..tensors.op_tensors import storage_of
from ..ways.again import AgainForward
from ..ways.finding import Unit
from .applied import Forward

BEGINS, ENDS = "begins", "ends"


@dataclass
class Call:
    """One call of a part in a measured step.

    unit : its number; -1: it ran without a plan. result_bytes : of what it made. shared : numbers of its input tensors that the
    call before it, or the one after it, has as well.
    """

    unit: int = -1
    result_bytes: int = 0
    shared: set[int] = field(default_factory=set)


class Watched:
    """The calls of parts in one step, noted as marks of `levels`: the call with the number 2 begins its forward ("2 forward
    begins"), ends it, begins its backward, and ends it."""

    def __init__(self, levels: Levels) -> None:
        self.levels = levels
        self.calls: list[Call] = []
        self._runs: int | None = None  # the compiled part whose backward runs
        self._inputs: list[weakref.ref[torch.Tensor]] = []  # of the last call

    @contextlib.contextmanager
    def watching(self, applied: Sequence[tuple[Forward, Sequence[int], Sequence[Unit]]]) -> Iterator[None]:
        """While this context is open, every call of a forward in `applied` is appended to `calls`, with its beginning and end.

        applied : (forward, numbers of its module's units, those units), as `Choices.applied` gives them.
        """
        with contextlib.ExitStack() as stack:
            for forward, numbers, units in applied:
                if isinstance(forward, PlannedForward):
                    noted = self._planned(forward, dict(zip((u.key for u in units), numbers, strict=True)))
                elif isinstance(forward, CompiledForward) and forward.way is not None:
                    noted = self._compiled(forward, numbers[0])
                else:
                    noted = self._open(forward, numbers[0])
                stack.enter_context(forward_instead(units[0].module, noted))
            yield

    def _planned(self, planned: PlannedForward, numbers: dict[Any, int]) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return planned(*args, **kwargs)
            call = self._begin(tree.tensors_in((args, kwargs)))
            planned.last = None
            result = planned(*args, **kwargs)
            last = planned.last
            self._end(call, -1 if last is None else numbers.get(last.trace.key, -1), (), result)
            node = boundary_of(tree.tensors_in(result))
            if node is not None:
                node.register_prehook(lambda _: self._mark(call, "backward", BEGINS))
                last_stage_of(node).register_hook(lambda *_: self._mark(call, "backward", ENDS))
            return result

        return forward

    def _compiled(self, compiled: CompiledForward, number: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            if not torch.is_grad_enabled():
                return compiled(*args, **kwargs)
            call = self._begin(tree.tensors_in((args, kwargs)))
            result = compiled(*args, **kwargs)
            given = tree.flatten((args, kwargs), opaque_ok=True)[0]
            around = {get_gradient_edge(t).node for t in given if t.requires_grad}
            node = _compiled_node(tree.tensors_in(result), around)
            self._end(call, -1 if node is None else number, given, result)
            if node is not None:
                node.register_prehook(lambda _: self._backward_begins(call))
                if not any(is_compiled(n) for n in around):
                    node.register_hook(lambda *_: self._backward_ends())
                # A hook behind a node keeps the gradient that the node is given. The next part's hook serves as well.
            return result

        return forward

    def _open(self, again: AgainForward | CompiledForward, number: int) -> Callable[..., Any]:
        def forward(*args: Any, **kwargs: Any) -> Any:
            tensors, spec = tree.flatten((args, kwargs), opaque_ok=True)
            around = {get_gradient_edge(t).node for t in tensors if t.requires_grad}
            if not torch.is_grad_enabled() or not around or tree.opaque_kinds(spec):
                return again(*args, **kwargs)
            call = self._begin(tree.tensors_in((args, kwargs)))
            result = again(*args, **kwargs)
            self._end(call, number, tensors, result)
            nodes = {t.grad_fn for t in tree.tensors_in(result) if t.grad_fn is not None} - around
            # A node of our own around an input would add up the gradients of the input's uses before eager does.
            last = _before(nodes, around)
            left: set[int] = set()  # ids of the nodes of `last` that have not run

            def begins(_: Any) -> None:
                if last:
                    left.update(id(n) for n in last if will_run(n))
                    last.clear()
                    self._backward_ends()
                    self._mark(call, "backward", BEGINS)

            def ends(number: int, *_: Any) -> None:
                if number in left:
                    left.discard(number)
                    if not left:
                        self._mark(call, "backward", ENDS)

            for node in last:
                node.register_hook(partial(ends, id(node)))
            for node in nodes:
                node.register_prehook(begins)
            return result

        return forward

    def _backward_begins(self, call: int) -> None:
        self._backward_ends()
        self._mark(call, "backward", BEGINS)
        self._runs = call

    def _backward_ends(self) -> None:
        """Note that the compiled part whose backward began last is over."""
        if self._runs is not None:
            self._mark(self._runs, "backward", ENDS)
        self._runs = None

    def _begin(self, given: Sequence[torch.Tensor]) -> int:
        before = {id(t): i for i, at in enumerate(self._inputs) if (t := at()) is not None}
        shared = {i: before[id(t)] for i, t in enumerate(given) if id(t) in before}
        if shared:
            self.calls[-1].shared.update(shared.values())
        self._inputs = [weakref.ref(t) for t in given]
        self.calls.append(Call(shared={*shared}))
        self._mark(len(self.calls) - 1, "forward", BEGINS)
        return len(self.calls) - 1

    def _end(self, call: int, unit: int, given: Sequence[torch.Tensor], result: Any) -> None:
        mine = {id(storage_of(t)) for t in given}
        made = {id(s): s.nbytes() for t in tree.tensors_in(result) if (s := storage_of(t)) is not None}
        noted = self.calls[call]
        noted.unit, noted.result_bytes = unit, sum(n for k, n in made.items() if k not in mine)
        self._mark(call, "forward", ENDS)

    def _mark(self, call: int, phase: str, what: str) -> None:
        self.levels.mark(f"{call} {phase} {what}")


def _compiled_node(results: Iterable[torch.Tensor], around: set[Any]) -> Any:
    """The autograd node of a compiled part; None: nothing of it is differentiated. around : nodes of its inputs."""
    stack = [t.grad_fn for t in results if t.grad_fn is not None and t.grad_fn not in around]
    seen = {*stack, *around}
    while stack:
        node = stack.pop()
        if is_compiled(node):
            return node
        more = [n for n, _ in node.next_functions if n is not None and n not in seen]
        seen.update(more)
        stack += more
    return None


def _before(nodes: Iterable[Any], around: Container[Any]) -> list[Any]:
    """The autograd nodes, among these and those behind them, that hand a gradient to one of the nodes `around`."""
    found, stack = {}, list(nodes)  # type: ignore[var-annotated]
    seen = set(stack)
    while stack:
        n = stack.pop()
        for after, _ in n.next_functions:
            if after in around:
                found[n] = None
            elif after is not None and after not in seen:
                seen.add(after)
                stack.append(after)
    return list(found)

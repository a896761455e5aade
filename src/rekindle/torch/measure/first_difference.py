"""Where two steps part that should give the same numbers: what an error says that no comparison of results can."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...model.op_names import op_words
from ..private import OpOverload
from ..run.program import op_that_runs
from ..situation.surroundings import casting_device
from ..tensors.op_tensors import Instrument, content_bytes, tensors_in
from .as_before import same
from .comparison import compare
from .measured_step import Outcome


def explained(name: str, plain: Callable[[], Outcome], planned: Callable[[], Outcome]) -> str:
    """In words, whether two plain steps agree, and if they do, the first operator of the planned step with other results.

    name : class of the model. plain, planned : run one such step, in an autocast block of its own.
    """
    apart = ", each in an autocast block of its own," if casting_device() else ""
    try:
        with _Results() as seen:
            one = plain()
        if compare(one, plain(), False).differences:
            return (
                f"Nor do two plain steps of {name}{apart} agree: it uses a kernel that is not deterministic on this device "
                "(see torch.use_deterministic_algorithms), or changes its own state or seed. Make its steps repeatable"
            )
        with _FirstDifference(seen) as ours:
            other = planned()
    except torch.OutOfMemoryError:
        return "Memory does not suffice to find the first operator that differs"
    first = f"the first operator that differs is {ours.first}" if ours.first else _beside_operators(one, other)
    return (
        f"Two plain steps{apart} agree bit for bit, and {first}. Please report it, unless forward reads what it changes"
    )


def _beside_operators(plain: Outcome, planned: Outcome) -> str:
    """In words, how steps differ of which no operator gives another result."""
    same_so_far, a, b = "no operator gives another result", plain.gradients, planned.gradients
    differs = [k for k in a | b if not same(a.get(k), b.get(k))]
    if alone := [k for k in differs if a.get(k) is None or b.get(k) is None]:
        step = "planned" if a.get(alone[0]) is None else "plain"
        return f"{same_so_far}, but only the {step} step has a gradient of {alone[0]}"
    for k in plain.written | planned.written:
        if not same(plain.written.get(k), planned.written.get(k)):
            return f"{same_so_far}, but {k} is not left as the plain step leaves it"
    return same_so_far + ", so that gradients are added up in another order" * bool(differs)


class _Results(Instrument):
    """Remembers the bits of all results of operators. found : kind of a result -> hashes of the results of this kind."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[Any, set[int]] = {}

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        for kind, t in _results(func, out):
            self.found.setdefault(kind, set()).add(_bits(t))


class _FirstDifference(Instrument):
    """Finds the first operator of a program with a result of which another step has none, though it has others of its kind."""

    def __init__(self, other: _Results) -> None:
        super().__init__()
        self._found, self.first = other.found, ""

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        if self.first or (ran := op_that_runs()) is None:
            return
        if any(kind in self._found and _bits(t) not in self._found[kind] for kind, t in _results(func, out)):
            graph, op = ran
            self.first = f"{op_words(graph.ops[op])} of {graph.name}"


def _results(func: Any, out: Any) -> list[tuple[Any, torch.Tensor]]:
    """(kind, tensor) of each result that the operator computes. In place or not, it is of one kind."""
    if not isinstance(func, OpOverload) or all(
        r.alias_info and not r.alias_info.is_write for r in func._schema.returns
    ):
        return []
    name = func._schema.name.rstrip("_")
    found = [t for t in tensors_in(out) if t.layout is torch.strided and t.device.type != "meta"]
    return [((name, i, t.shape, t.dtype), t) for i, t in enumerate(found)]


def _bits(t: torch.Tensor) -> int:
    return hash(content_bytes(t))

"""Runs an op whole and in slices, and compares the bits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise, product
from typing import Any

import torch
from torch import fx

from ..operators.memory_order import has_gaps
from ..operators.rules import runnable
from ..operators.table import copies_gaps, wants_dense
from .cuts import SUM, Cut, sliced_call, span
from .random_arguments import with_tensors

LAYOUTS_MOST = 8  # mixtures of layouts of the slices that are tried. A guess
_INTS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes per element


def edges_of(slices: int, size: int) -> list[int]:
    """The units, of `size`, at which slices begin, and the end of the last one; sizes of slices differ by at most one."""
    return [i * size // slices for i in range(slices + 1)]


def same_bits(
    node: fx.Node,
    cut: Cut,
    edges: Sequence[int],
    tensors: Sequence[torch.Tensor],
    some: bool = False,
) -> bool:
    """Whether every slice of the op gives the bits of its part of the whole, on these arguments. Results that are added up from
    slices are passed over.

    A slice of a tensor is a view of it with gaps, or a tensor of its own without gaps; arguments come either way, and all
    mixtures are tried, as far as there are no more than `LAYOUTS_MOST`: else all with gaps and all without.

    some : of slices of equal size only the first two and the last run: they differ in where they lie in memory alone.
    """
    op, size = runnable(node.target), edges[-1]
    args, kwargs = with_tensors(node, list(tensors))
    whole = _results(op(*args, **kwargs))
    if tensors and tensors[0].is_cuda and not _equal(whole, _results(op(*args, **kwargs))):
        return False  # a kernel whose bits vary from run to run
    for dense in _layouts(node, cut, edges, tensors):
        for begin, end in _some(edges) if some else pairwise(edges):
            pieces = [
                t if d is None else _piece(t, d, *span(t.shape[d], begin, end, size), own)
                for t, d, own in zip(tensors, cut.ins, dense, strict=True)
            ]
            target, given, named = sliced_call(node, cut, pieces, begin, end, size)
            made = _results(runnable(target)(*given, **named))
            parts = [
                t if not isinstance(d, int) or t is None else _piece(t, d, *span(t.shape[d], begin, end, size), False)
                for t, d in zip(whole, cut.outs, strict=True)
                if d != SUM
            ]
            if not _equal(parts, [t for t, d in zip(made, cut.outs, strict=True) if d != SUM]):
                return False
    return True


def _some(edges: Sequence[int]) -> list[tuple[int, int]]:
    """The first two slices of each size, and the last."""
    by_size: dict[int, list[tuple[int, int]]] = {}
    for begin, end in pairwise(edges):
        by_size.setdefault(end - begin, []).append((begin, end))
    return sorted({s for alike in by_size.values() for s in (*alike[:2], alike[-1])})


def _layouts(
    node: fx.Node, cut: Cut, edges: Sequence[int], tensors: Sequence[torch.Tensor]
) -> Iterator[tuple[bool, ...]]:
    """For each argument, whether its slices are tensors of their own."""
    gaps = [
        d is not None and has_gaps(_piece(t, d, *span(t.shape[d], edges[0], edges[1], edges[-1]), False))
        for t, d in zip(tensors, cut.ins, strict=True)
    ]
    if wants_dense(node.target) or copies_gaps(node.target):
        yield tuple(gaps)
    elif 2 ** sum(gaps) <= LAYOUTS_MOST:
        yield from product(*([False, True] if g else [False] for g in gaps))
    else:
        yield (False,) * len(gaps)
        yield tuple(gaps)


def _piece(t: torch.Tensor, dim: int, begin: int, end: int, own: bool) -> torch.Tensor:
    view = t.narrow(dim, begin, end - begin)
    return view.clone(memory_format=torch.preserve_format) if own else view


def _results(made: Any) -> list[torch.Tensor | None]:
    members = made if isinstance(made, tuple | list) else [made]
    return [t if isinstance(t, torch.Tensor) else None for t in members]


def _equal(one: Sequence[torch.Tensor | None], two: Sequence[torch.Tensor | None]) -> bool:
    """Whether two lists of tensors hold the same bits, NaNs included."""
    return all(
        (a is None and b is None)
        or (a is not None and b is not None and a.shape == b.shape and torch.equal(_bits(a), _bits(b)))
        for a, b in zip(one, two, strict=True)
    )


def _bits(t: torch.Tensor) -> torch.Tensor:
    """The elements as whole numbers."""
    t = torch.view_as_real(t) if t.dtype.is_complex else t
    return t.view(_INTS[t.element_size()]) if t.dtype.is_floating_point else t

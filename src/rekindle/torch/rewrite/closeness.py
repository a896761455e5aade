"""Which results of a rewritten step need not have the plain step's bits, and how far from them they may be.

Ops in slices whose parts are added up, and those whose slices are not proven to give the same bits, are marked; everything that
is computed from their results may differ by rounding, and nothing else may.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import fx

from ..capture.captured import Captured
from ..lowering.phases import computed_from
from ..operators.node_tensors import tensors_of
from ..tensors import precision

SUMMED, UNPROVEN = "rekindle_summed", "rekindle_unproven"  # marks among a node's metas

# How far results may be from the plain step's, relative to the largest element of the tensor. Guesses.
EXACT_MOST = 2e-5  # where everything is computed in float32 or float64
EPSILONS_MOST = 8.0  # of the coarsest type in which they are computed, where that is coarser
# Tensors whose largest element is a smaller share than this of the largest of all are measured by that share: a gradient that
# is zero but for rounding (of a bias before a batch norm, say) has no scale of its own.
LEAST_SHARE = 0.01
_TF32_EPSILON = 2.0**-10


@dataclass(frozen=True)
class Loose:
    """Results that may differ from the plain step's by rounding.

    parameters : names of the parameters whose gradients may differ.
    inputs : whether gradients of inputs may differ. results : whether results of the module may differ.
    written : names of the buffers and attributes that forward writes and that may differ.
    most : the largest difference that is allowed, relative to the largest element of its tensor.
    """

    parameters: frozenset[str] = frozenset()
    inputs: bool = False
    results: bool = False
    written: frozenset[str] = frozenset()
    most: float = EXACT_MOST


NOTHING = Loose()


def marked(c: Captured) -> list[fx.Node]:
    """The ops by which a rewritten step computes in another order than the captured one, or by slices that are not proven."""
    return [n for n in c.nodes if SUMMED in n.meta or UNPROVEN in n.meta]


def loose(c: Captured) -> Loose:
    """The results that may differ from the plain step by rounding."""
    found = computed_from(marked(c), c.nodes)
    if not found:
        return NOTHING
    apart = {p for p, g in c.gradients.items() if g in found}
    results = c.outputs[: c.own]
    names = {**c.params, **c.buffers}
    written = {names.get(p, "") for p, n in c.mutations.items() if n in found}
    written |= {k for k, a in c.assigned.items() if a.output is not None and c.outputs[a.output] in found}
    written |= {names.get(p, "") for n, w in c.writing.items() if n in found for p in w.placeholders}
    return Loose(
        frozenset(c.params[p] for p in apart if p in c.params),
        any(p not in c.params for p in apart),
        any(n in found for n in results),
        frozenset(written - {""}),
        _most(found),
    )


def sums(c: Captured) -> tuple[str, ...]:
    """Names of the parameters whose gradients may differ from the plain step's by rounding."""
    found = loose(c)
    return tuple(sorted([*found.parameters, *(["an input"] if found.inputs else [])]))


def least_scale(gradients: Iterable[torch.Tensor | None]) -> float:
    """The size by which the differences of the smallest gradients are measured."""
    return LEAST_SHARE * max((_largest(g.detach()) for g in gradients if g is not None), default=0.0)


def difference(one: torch.Tensor | None, other: torch.Tensor | None, least: float = 0.0) -> float:
    """The largest difference of two tensors of one shape, relative to the largest element of the second one, or to `least`
    where that is larger. Elements that are NaN, or the same infinity, in both do not differ; those that are so in one alone do
    without end, as do a tensor and None."""
    if one is None or other is None:
        return 0.0 if one is other else float("inf")
    if one.shape != other.shape or one.dtype != other.dtype:
        return float("inf")
    if not other.numel():
        return 0.0
    a, b = _real(one), _real(other)
    same = (a == b) | (a.isnan() & b.isnan())
    off = torch.where(same, 0.0, (a - b).abs()).nan_to_num(nan=float("inf"), posinf=float("inf")).max().item()
    if not off:
        return 0.0
    scale = max(_largest(b), least)
    return float(off / scale) if scale else float("inf")


def _real(t: torch.Tensor) -> torch.Tensor:
    """The numbers of a tensor in float64: of complex ones both parts."""
    t = t.detach()
    return torch.view_as_real(t.resolve_conj()).double() if t.is_complex() else t.double()


def _largest(t: torch.Tensor) -> float:
    """The largest finite element."""
    return float(torch.where(t.isfinite(), t.abs(), 0.0).max()) if t.numel() else 0.0


def _most(nodes: Iterable[fx.Node]) -> float:
    """How far rounding may move the results of ops, relative to the largest element of each."""
    coarsest = 0.0
    for n in nodes:
        for _, t in tensors_of(n):
            if t.is_floating_point():
                coarsest = max(coarsest, epsilon(t))
    return max(EXACT_MOST, EPSILONS_MOST * coarsest)


def epsilon(t: torch.Tensor) -> float:
    """The rounding of the type in which results such as t are computed; 0.0 for float32 and float64."""
    if t.dtype is torch.float32:
        rounds = t.is_cuda and any(map(precision.rounds, (precision.of_products(), precision.of_convolutions())))
        return _TF32_EPSILON if rounds else 0.0
    return 0.0 if t.dtype is torch.float64 else torch.finfo(t.dtype).eps

"""How far the numbers of a plain step vary from run to run, where a kernel adds up in another order each time.

On a GPU some kernels do, even where deterministic ones are preferred: PyTorch's fused attention is deterministic only with
`torch.use_deterministic_algorithms(True)`, under which every op without a deterministic kernel raises.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import count, islice
from typing import Generic, TypeVar

import torch

from ..rewrite.closeness import difference, epsilon, least_scale
from .as_before import same

T = TypeVar("T")
Tensors = Mapping[str, torch.Tensor | None]


@dataclass(frozen=True)
class VariationSettings:
    """How variation is measured. All are guesses.

    runs : plain steps that are run again, at most; one shows whether anything varies.
    times : a planned step may be so many times as far from a plain one as plain steps are from each other.
    exact_most : results in float32 or float64 that vary by more, relative to the largest element, do not vary by rounding.
    epsilons_most : so many roundings of the coarsest type, where that is coarser; coarse_most : and never more than this.
    """

    runs: int = 3
    times: float = 8.0
    exact_most: float = 3e-4
    epsilons_most: float = 128.0
    coarse_most: float = 0.1


SETTINGS = VariationSettings()


class Repeated(Generic[T]):
    """What a function gives, again and again; it runs no more often than the longest walk asks for."""

    def __init__(self, make: Callable[[], T]):
        self._make, self._known = make, list[T]()

    def __iter__(self) -> Iterator[T]:
        for k in count():
            if k == len(self._known):
                self._known.append(self._make())
            yield self._known[k]


def allowed(theirs: Tensors, wrong: Collection[str], others: Iterable[Tensors]) -> dict[str, float]:
    """Name -> how far the tensor may be from the plain step's, as `closeness.difference` with `least_scale` of all tensors has
    it, for those among `wrong` that vary by rounding from one plain step to another. The others are left out.

    theirs : what the plain step gave, by name. others : what more plain steps give; as few are taken as tell.
    """
    seen: dict[str, float] = {}
    least, most = least_scale(theirs.values()), _most(theirs)
    for now in islice(others, SETTINGS.runs):
        for k, t in theirs.items():
            other = now.get(k)
            if t is not None and other is not None and not same(other, t):
                seen[k] = max(seen.get(k, 0.0), difference(other, t, least))
        if not seen or seen.keys() >= set(wrong):
            break
    usual = statistics.median(seen.values()) if seen else 0.0
    return {k: SETTINGS.times * max(seen[k], usual) for k in wrong if k in seen and max(seen[k], usual) <= most}


def _most(theirs: Tensors) -> float:
    """How far rounding may move what a step computes in sums of another order."""
    given = [t for t in theirs.values() if t is not None and t.is_floating_point()]
    under = {torch.get_autocast_dtype(t.device.type) for t in given if torch.is_autocast_enabled(t.device.type)}
    coarsest = max([*map(epsilon, given), *(torch.finfo(d).eps for d in under)], default=0.0)
    return min(SETTINGS.coarse_most, max(SETTINGS.exact_most, SETTINGS.epsilons_most * coarsest))

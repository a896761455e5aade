"""Which submodules get inputs whose shapes depend on the data: one more forward, on other values, tells.

The values are those of another batch that the user could have given: the first half of the sample's rows, each of them twice.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch

from ..measure.measured_step import Subject
from ..measure.recording import Calls, one_forward, parts_of, shapes_of
from ..situation import module_call as calls
from ..tensors.lock import LOCK
from ..trace import plain_forward

Shapes = tuple[tuple[int, ...], ...]


class Varying:
    """Tells which submodules are called with other shapes when the sample has other values.

    found : the calls on the sample itself.
    """

    def __init__(self, s: Subject, found: Mapping[str, Calls]):
        self._s, self._found = s, found
        self._others: dict[str, set[Shapes]] | None = None
        self._asked = False

    def any_of(self, paths: Iterable[str]) -> bool:
        """Whether other values in the sample give some of these submodules inputs of other shapes.

        paths : submodules of one signature. If no other values can be tried, two of them that are called with different shapes
            are evidence enough.
        """
        if not self._asked:
            self._asked, self._others = True, self._with_other_values()
        paths = list(paths)
        known = {p: {r.shapes for r in self._found[p].samples.values()} for p in paths}
        if self._others is None:
            return len(set().union(*known.values())) > 1
        return any(not self._others.get(p, set()) <= known[p] for p in paths)

    def _with_other_values(self) -> dict[str, set[Shapes]] | None:
        """path -> the shapes of its calls on other values; None: the sample has no other values, or forward fails on them."""
        if self._s.fake is not None:
            return None
        seen: dict[str, set[Shapes]] = {}
        instead = [(m, _noting(plain_forward(m), seen.setdefault(name, set()))) for name, m in parts_of(self._s.model)]
        changed: list[bool] = []
        try:
            one_forward(self._s, instead, change=lambda tensors: changed.append(self._doubled(tensors)))
        except Exception:  # it accepts no such batch, or takes gradients itself
            return None
        return seen if any(changed) else None

    @torch.no_grad()
    def _doubled(self, tensors: list[torch.Tensor]) -> bool:
        """Write the first half of the rows over all rows, each twice; of a batch of one row, the first half of its columns.
        Gives whether a value has changed."""
        first = next((t for t in tensors if t.dim() > 1), None)
        if first is None:
            return False
        along = 0 if first.shape[0] > 1 else 1
        changed = False
        for i, t in enumerate(tensors):
            if t.shape[: along + 1] != first.shape[: along + 1] or self._s.sample.is_owned(i):
                continue
            other = t.index_select(along, torch.arange(t.shape[along], device=t.device) // 2)
            changed |= not torch.equal(other, t)
            t.copy_(other)
        return changed


def _noting(forward: Callable[..., Any], shapes: set[Shapes]) -> Callable[..., Any]:
    def noted(*args: Any, **kwargs: Any) -> Any:
        if torch.is_grad_enabled() and not LOCK.mine:
            shapes.add(shapes_of(calls.bind(forward, args, kwargs)))
        return forward(*args, **kwargs)

    return noted

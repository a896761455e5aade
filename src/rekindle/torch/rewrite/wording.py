"""Says of a rewrite, in words for people, which ops it is: the modules, and the dimension along which they are cut."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

from torch import fx

from ...model.rewriting import SAVES, SLICES, WHERE_MOST_LETTERS, Dims, Rewrite
from ...printed import printable
from ..capture.captured import Captured
from ..operators.node_tensors import storage_bytes, tensors_of
from ..operators.table import by_overload

# op that reads a smaller save -> (what is saved, of which layer)
_SAVED = by_overload("saved")


def told(c: Captured, step: Rewrite) -> Rewrite:
    """The rewrite with words for its ops: "features.0-16, along the batch"; "signs of 13 ReLUs, offsets of 5 pools".

    c : the step as the rewrites before this one left it.
    """
    nodes = [c.nodes[i] for i in step.ops]
    if step.kind == SAVES:
        words = _saved(nodes)
    elif step.kind == SLICES:
        along = _along(nodes, [outs for _, outs in step.cuts])
        words = ", ".join(part for part in (_modules(c, nodes), along) if part)
    else:
        words = _modules(c, nodes)
    words = printable(words)
    return replace(step, where=words if len(words) <= WHERE_MOST_LETTERS else f"{words[: WHERE_MOST_LETTERS - 1]}…")


def span_of(paths: Sequence[str]) -> str:
    """The first and the last of some modules, in order.

    >>> span_of(["features.0", "features.1", "features.16"]), span_of(["bn1", "relu"]), span_of(["head"]), span_of([])
    ('features.0-16', 'bn1 to relu', 'head', '')
    """
    if not paths:
        return ""
    first, last = paths[0], paths[-1]
    if first == last:
        return first
    (above, _, one), (over, _, two) = first.rpartition("."), last.rpartition(".")
    numbered = one.isdecimal() and two.isdecimal() and int(one) < int(two)
    return f"{first}-{two}" if above == over and numbered else f"{first} to {last}"


def _saved(nodes: Sequence[fx.Node]) -> str:
    counts = Counter(_SAVED[n.target] for n in nodes if n.target in _SAVED)
    return ", ".join(f"{what} of {n:,} {layer}{'' if n == 1 else 's'}" for (what, layer), n in counts.items())


def _modules(c: Captured, nodes: Sequence[fx.Node]) -> str:
    """The modules of the ops, the first and the last in order of forward; "" where none is in a module of its own."""
    inside = {c.module_path.get(n, "") for n in nodes} - {""}
    return span_of([p for p in dict.fromkeys(c.module_path.get(n, "") for n in c.nodes) if p in inside])


def _along(nodes: Sequence[fx.Node], outs: Sequence[Dims]) -> str:
    """The dimension along which the largest result is cut: "along the batch"."""
    every = ((t, dims[j]) for n, dims in zip(nodes, outs, strict=True) for j, t in tensors_of(n))
    found = [(t, dim) for t, dim in every if isinstance(dim, int)]
    if not found:
        return ""
    t, dim = max(found, key=lambda pair: storage_bytes(pair[0]))
    return f"along {_dimension(t.dim(), dim, any('attention' in str(n.target) for n in nodes))}"


def _dimension(rank: int, dim: int, attention: bool) -> str:
    """A dimension as users call it. attention : there is attention among the ops, whose second dimension is the heads."""
    if dim == 0:
        return "the batch" if rank > 2 else "the rows"
    if dim == 1 and rank in (4, 5):
        return "the heads" if attention else "the channels"
    return f"dimension {dim}"

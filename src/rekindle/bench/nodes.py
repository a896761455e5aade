"""A schedule's cost as the number of graph nodes that it runs, each at cost 1; by our reading FastSA counts so.

A. Imanishi, Z. Xu, M. Takagi, S. Wang, E. Castillo, A fast heuristic to optimize time-space tradeoff for large models,
NeurIPS 2023: its graphs come from torch.fx, in which views and the members of an op's result are nodes too.
"""

from __future__ import annotations

from collections.abc import Iterable

from torch import fx

from ..model.graph import OPERATOR
from ..torch.lowering.lowered import Lowered


def node_runs(low: Lowered, runs: Iterable[int]) -> int:
    """Number of nodes that run when ops run in this order: every ATen call, and each view of a result that a later op reads,
    once for every time that the result is computed."""
    views = low.views
    made_by = {c.node: i for i, c in enumerate(low.calls) if c.kind == OPERATOR and c.node is not None}
    below: dict[fx.Node, tuple[int, ...]] = {}  # view -> ops whose results it is of
    for n in low.captured.nodes:
        if n in views:
            ops = [
                o for a in n.all_input_nodes for o in (below[a] if a in views else [made_by[a]] if a in made_by else [])
            ]
            below[n] = tuple(dict.fromkeys(ops))
    times = [0] * len(low.calls)
    taken: set[tuple[fx.Node, tuple[int, ...]]] = set()
    count = 0
    for i in runs:
        call = low.calls[i]
        waiting = list(_operands(low, i))
        while waiting:
            n = waiting.pop()
            if n in views and (key := (n, tuple(times[o] for o in below[n]))) not in taken:
                taken.add(key)
                waiting += n.all_input_nodes
        times[i] += 1
        count += call.kind == OPERATOR
    return count + len(taken)


def _operands(low: Lowered, i: int) -> Iterable[fx.Node]:
    """The nodes that op i reads."""
    call = low.calls[i]
    if call.kind == "boundary":
        return [n for n in low.captured.outputs if isinstance(n, fx.Node)]
    if call.node is None:
        return []
    if call.kind == OPERATOR:
        return call.node.all_input_nodes
    handed_over = {"accumulate": low.captured.gradients, "copy_": low.captured.mutations}.get(call.kind, {})
    return [handed_over[call.node]] if call.node in handed_over else []

"""Ops whose slices are known, without a run, to give the bits of the whole op: by construction, or as measured before.

`Operator.exact` says which are by construction. `Operator.same_bits` was measured on a CPU (float32, AVX-512, one and two
threads, 2 to 8 slices), and counts where nothing can run, and for steps that are planned without tensors: there all figures
are modelled.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import fx

from ..operators.cut_call import Call, Cut, Slicing, broadcast
from ..operators.node_tensors import is_view
from ..operators.record import BY_ELEMENT, BY_ROW, EVERYWHERE, ON_CPU
from ..operators.rules import UNWRITTEN
from ..operators.table import record_of, rule_of
from ..private import OpOverload

_THREADS = 64  # for machines that are not known
_ONE_MORE = "alpha"  # a factor in an addition: some kernels round the product, and others do not


def by_construction(node: fx.Node) -> bool:
    """Whether slices of the op, whichever cut it is, have the bits of the whole because of the way in which it computes.

    A NaN is a NaN in both; which of the NaNs it is may differ."""
    if is_view(node) or getattr(node.target, "overloadpacket", None) in UNWRITTEN:
        return True
    if not isinstance(node.target, OpOverload):
        return False
    call = Call(node)
    results = [t for t in call.results if t is not None]
    if (
        any(t.dtype.is_complex for t in results)
        or call.values.get(_ONE_MORE, 1) != 1
        or call.values.get("rounding_mode")
    ):
        return False
    exact = record_of(call.name).exact
    return exact == EVERYWHERE or exact == ON_CPU and all(t.device.type == "cpu" for t in results)


def known(node: fx.Node, cut: Cut, edges: Sequence[int]) -> bool | None:
    """Whether the table says that slices of the op have the bits of the whole; of ops that are not in it, they have not. None:
    it depends on the op's shapes and on the machine, so that a run alone tells."""
    q = Slicing(node, cut, edges)
    rule = record_of(q.call.name).same_bits
    if rule is not None:
        return rule(q)
    return rule_of(node.target) is broadcast and q.in_whole_vectors(_THREADS)


def can_be_probed(node: fx.Node, cut: Cut, edges: Sequence[int]) -> bool:
    """Whether a run on a CPU tells more than chance.

    Where elements that lie in whole vectors in the whole are left over in a slice, those few alone are computed in another way,
    and for many random numbers both ways give the same bits.
    """
    q = Slicing(node, cut, edges)
    vectors = record_of(q.call.name).vectors
    if rule_of(node.target) is broadcast or vectors == BY_ELEMENT:
        return q.in_whole_vectors(torch.get_num_threads())
    if vectors == BY_ROW:
        first = min(q.call.dims())
        return q.contiguous() and all(d is None or d < first for d in cut.ins)
    return True

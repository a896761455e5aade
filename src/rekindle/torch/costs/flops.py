"""FLOPs of operator calls, by one function for captured graphs, executed programs and eager steps.

A multiply-add counts two, and only matrix products, convolutions and attention count, as in `torch.utils.flop_counter`.
Torch's formulas are used wherever they are right; records have the others.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from ..operators.table import OPERATORS
from ..tensors.op_tensors import Instrument

aten = torch.ops.aten
_OURS = {getattr(aten, name.removeprefix("aten::")): op.flops for name, op in OPERATORS.items() if op.flops is not None}
_AS = {
    getattr(aten, name.removeprefix("aten::")): op.flops_as for name, op in OPERATORS.items() if op.flops_as is not None
}


def op_flops(target: Any, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """FLOPs of one call of the operator overload `target`; its tensors (args, kwargs, out) may be real or fake.

    An operator without a formula (point-wise, normalisation, copies, …) counts 0.
    """
    packet = getattr(target, "_overloadpacket", target)
    packet = _AS.get(packet, packet)
    if packet in _OURS:
        return _OURS[packet](args, kwargs, out)
    formula = flop_registry.get(packet)
    return 0 if formula is None else int(formula(*args, **kwargs, out_val=out))


class FlopCount(Instrument):
    """Counts the FLOPs of every operator that runs inside, forward and backward, on real or fake tensors, in `total`, and these
    operators in `ops`.

    >>> with FlopCount() as count:
    ...     _ = torch.ones(2, 3) @ torch.ones(3, 5)
    >>> count.total
    60
    """

    def __init__(self) -> None:
        super().__init__()
        self.total = self.ops = 0

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        self.total += op_flops(func, args, kwargs, out)
        self.ops += 1

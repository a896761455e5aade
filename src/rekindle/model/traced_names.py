"""The name of an op that was traced from a module: "module|operator|shape".

The hash of a graph is made of names, so these stay as they are in the plans that users saved. Files written before ops had
the fields `module`, `kind`, `target` and `shape` hold the same facts in their names alone; `filled_in` is the only place
that takes a name apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from .graph import BOUNDARY, KINDS, OPERATOR, Op


def traced_name(kind: str, module: str = "", target: str = "", shape: str = "") -> str:
    """The name of a traced op. Ops that are no operators have their kind in the operator's place.

    >>> traced_name("aten", "layer1.0.conv1", "aten.convolution.default", "f32[8,64,56,56]")
    'layer1.0.conv1|aten.convolution.default|f32[8,64,56,56]'
    >>> traced_name("accumulate", "layer1.0.conv1.weight")
    'layer1.0.conv1.weight|accumulate|'
    >>> traced_name("boundary")
    'boundary'
    """
    return BOUNDARY if kind == BOUNDARY else f"{module}|{target or kind}|{shape}"


def filled_in(ops: Sequence[Op]) -> tuple[Op, ...]:
    """The ops of a file; their fields come from their names where no op of the file has them and every name is a traced
    one. Graphs made by hand stay as they are."""
    if any(op.described for op in ops) or not all(op.name == BOUNDARY or op.name.count("|") == 2 for op in ops):
        return tuple(ops)
    return tuple(_from_name(op) for op in ops) if any(op.name != BOUNDARY for op in ops) else tuple(ops)


def _from_name(op: Op) -> Op:
    if op.name == BOUNDARY:
        return replace(op, kind=BOUNDARY)
    module, operator, shape = op.name.split("|")
    if operator in KINDS:
        return replace(op, module=module, kind=operator, shape=shape)
    return replace(op, module=module, kind=OPERATOR, target=operator, shape=shape)

"""The readable name of an op, and the name that a traced op has in files: "module|operator|shape".

The hash of a graph is made of names, so traced names stay as they are in the plans that users saved. Files written before ops
had the fields `module`, `kind`, `target` and `shape` hold the same facts in their names alone; only `filled_in` takes a name
apart.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace

from ..printed import name
from .graph import ACCUMULATE, BOUNDARY, COPY, KINDS, OPERATOR, SNAPSHOT, Graph, Op

# Kinds of ops that are no operators, in words.
WORDS = {
    BOUNDARY: "the end of forward",
    SNAPSHOT: "a copy of a tensor before it changes",
    COPY: "new content of a tensor",
    ACCUMULATE: "a gradient handed over",
}


def op_words(op: Op) -> str:
    """The op as a message names it, safe to print; its own name where the graph does not say more.

    >>> op_words(Op("a", (), (), module="layer1.0.conv1", target="aten.convolution.default", shape="f32[8,64,56,56]"))
    'layer1.0.conv1 (convolution, f32[8,64,56,56])'
    >>> op_words(Op("b", (), (), module="layer1.0.conv1.weight", kind="accumulate"))
    'layer1.0.conv1.weight (a gradient handed over)'
    >>> op_words(Op("matmul_1", (), ()))
    'matmul_1'
    """
    if not (op.target or op.kind in WORDS):
        return name(op.name)
    details = ", ".join(part for part in (does(op), op.shape) if part)
    return name(f"{op.module} ({details})" if op.module else details)


def does(op: Op) -> str:
    """The operator in a word, as users call it; the op's own name where the graph does not say more.

    >>> does(Op("a", (), (), target="aten.convolution.default")), does(Op("b", (), (), kind="boundary"))
    ('convolution', 'the end of forward')
    >>> does(Op("a", (), (), target="aten.native_layer_norm.default"))
    'layer_norm'
    >>> does(Op("a", (), (), target="aten._scaled_dot_product_flash_attention.default"))
    'attention'
    >>> does(Op("a", (), (), target="aten._native_batch_norm_legit_functional.default"))
    'batch_norm'
    """
    if not op.target:
        return WORDS.get(op.kind) or op.name
    operator = operator_name(op.target)
    attention = re.fullmatch(r"_?scaled_dot_product_.*attention\w*?(_backward)?", operator)
    return f"attention{attention[1] or ''}" if attention else re.sub(r"^_*(native_)?|_legit\w*", "", operator)


def op_words_of(graph: Graph, op_name: str) -> str:
    """`op_words` of the first op with this name, as `Plan.bound_op` holds it; the name itself where no op has it."""
    return next((op_words(op) for op in graph.ops if op.name == op_name), name(op_name))


def operator_name(target: str) -> str:
    """The operator without PyTorch's own namespace and without the overload.

    >>> operator_name("aten.convolution.default"), operator_name("aten.add.Tensor"), operator_name("mine.fuse.default")
    ('convolution', 'add', 'mine.fuse')
    """
    parts = target.split(".")
    if len(parts) == 3:  # namespace, operator, overload
        parts = parts[:2]
    return ".".join(parts[1:] if parts[0] == "aten" and len(parts) > 1 else parts)


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

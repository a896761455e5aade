"""The ops of the loss in a step, and those of attention that write its scores out: by operator, without PyTorch."""

from __future__ import annotations

from ..model.graph import Graph
from ..model.op_names import operator_name
from .holding import is_gradient

LOSSES = (
    "nll_loss", "cross_entropy", "mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss", "binary_cross_entropy",
    "soft_margin_loss", "kl_div", "ctc_loss", "multi_margin_loss",
)  # fmt: skip
BEFORE_A_LOSS = ("_log_softmax", "_to_copy", "clone", "constant_pad_nd", "convert_element_type")
BEHIND_A_LOSS = "_log_softmax_backward_data"
SOFTMAX = ("_softmax", "_safe_softmax")
PRODUCTS = ("mm", "bmm", "addmm", "baddbmm", "matmul")


def is_loss(target: str) -> bool:
    """Whether the operator is a loss, forward or backward."""
    return any(loss in operator_name(target) for loss in LOSSES) if target else False


def loss_and_gradients(graph: Graph) -> frozenset[int]:
    """The losses of a step and the ops of their backward, back to the gradient of the logits."""
    found = {i for i, op in enumerate(graph.ops) if is_loss(op.target)}
    if found:
        found |= {i for i, op in enumerate(graph.ops) if operator_name(op.target) == BEHIND_A_LOSS}
    return frozenset(found)


def loss_ops(graph: Graph) -> frozenset[int]:
    """The ops of forward that compute the loss: losses, and what makes their inputs ready (log_softmax, casts, copies)."""
    producer = graph.arrays.producer.tolist()
    found = {i for i, op in enumerate(graph.ops) if is_loss(op.target) and not is_gradient(graph, i)}
    todo = list(found)
    while todo:
        for v in graph.ops[todo.pop()].inputs:
            maker = producer[v]
            if maker < 0 or maker in found or is_gradient(graph, maker):
                continue
            if operator_name(graph.ops[maker].target) in BEFORE_A_LOSS and all(
                reader in found or is_gradient(graph, reader) for reader in graph.consumers[v]
            ):
                found.add(maker)
                todo.append(maker)
    return frozenset(found)


def scores_ops(graph: Graph) -> frozenset[int]:
    """The ops whose first output is as large as attention's scores: softmax over rows [..., queries, keys] that is no part of
    a loss, and what makes its input."""
    producer = graph.arrays.producer.tolist()
    found: set[int] = set()
    todo = [
        i for i, op in enumerate(graph.ops) if op.target and operator_name(op.target) in SOFTMAX and not op.backward
    ]
    todo = [i for i in todo if len(dimensions(graph.ops[i].shape)) >= 3]
    while todo:
        i = todo.pop()
        if i in found:
            continue
        found.add(i)
        is_product = operator_name(graph.ops[i].target) in PRODUCTS
        for v in () if is_product else graph.ops[i].inputs:
            maker = producer[v]
            if maker >= 0 and dimensions(graph.ops[maker].shape)[-2:] == dimensions(graph.ops[i].shape)[-2:]:
                todo.append(maker)
    return frozenset(found)


def dimensions(shape: str) -> tuple[int, ...]:
    """The dimensions in "f32[8,64,56,56]"; () where they are not all numbers.

    >>> dimensions("f32[8,64]"), dimensions("f32[]"), dimensions("")
    ((8, 64), (), ())
    """
    inside = shape.partition("[")[2].rstrip("]")
    parts = inside.split(",") if inside else []
    return tuple(int(p) for p in parts) if all(p.isascii() and p.isdigit() and len(p) < 19 for p in parts) else ()

"""The comparators by name: each is a context in which the model's step runs that way."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ..model.plan import Plan
from ..torch.trace import Trace
from .auto_chunker import in_chunks
from .cases import Case
from .checkpointing import per_block, sequential
from .chunked_loss import chunked_loss
from .compiled import compiled


def needs_trace(method: str) -> bool:
    """Whether the comparator starts from the captured graph."""
    return method == "auto-chunker" or method.startswith("compile-")


def comparator(
    method: str, case: Case, traced: Trace | None, once: Plan | None
) -> AbstractContextManager[bytes | None]:
    """The context of a comparator. It yields a key, equal for equal steps, or None where no key is known.

    traced, once : the captured step and a plan that runs each op once; only comparators that need a trace use them.
    """
    if method == "checkpoint-blocks":
        return per_block(case.model)
    if method == "selective-matmul":
        return per_block(case.model, selective=True)
    if method == "checkpoint-sequential":
        return sequential(case.model, case.once)
    if method == "linear-cross-entropy":
        return chunked_loss(case.model)
    assert traced is not None
    assert once is not None
    if method == "auto-chunker":
        return compiled(case.model, traced, once, 1.0, in_chunks)
    return compiled(case.model, traced, once, float(method.removeprefix("compile-")))

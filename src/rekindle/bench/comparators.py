"""The comparators by name: each a context within which the model's step runs that way."""

from __future__ import annotations

from contextlib import AbstractContextManager

from ..model.plan import Plan
from ..torch.trace import Trace
from .cases import Case
from .checkpointing import per_block, sequential
from .compiled import compiled


def needs_trace(method: str) -> bool:
    """Whether the comparator starts from the captured graph."""
    return method.startswith("compile-")


def comparator(
    method: str, case: Case, traced: Trace | None, once: Plan | None
) -> AbstractContextManager[bytes | None]:
    """traced, once : the captured step and a plan that runs each op once; for comparators that need them. The context gives
    what tells its step from that of another method of the kind; None: nothing does."""
    if method == "checkpoint-blocks":
        return per_block(case.model)
    if method == "selective-matmul":
        return per_block(case.model, selective=True)
    if method == "checkpoint-sequential":
        return sequential(case.model, case.once)
    assert traced is not None
    assert once is not None
    return compiled(case.model, traced, once, float(method.removeprefix("compile-")))

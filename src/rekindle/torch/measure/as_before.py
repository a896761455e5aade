"""Runs steps that are no training and puts the model back as it was."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
from torch import nn

from ..run.shared_casts import block_of_its_own
from ..tensors.op_tensors import dense_parts
from ..undo.kept import Before, kept


@contextlib.contextmanager
def as_before(
    model: nn.Module, given: Iterable[Any] | Mapping[str, Any] = (), *, fake: bool = False
) -> Iterator[Before]:
    """`kept`, for code that runs steps on the model's own tensors. Inside, these have neither gradients nor hooks.

    Autocast casts anew inside and afterwards, as in a block of its own: a cast that a step finds in the cache gets its
    gradients in another order.
    """
    # TorchScript chooses its formulas by its first calls, so steps that are no training must not be among them.
    script = torch.jit.optimized_execution(False)
    with kept(model, given, fake=fake) as before, script, block_of_its_own():
        before.tensors.without_gradients()
        yield before


def nothing_saved(error: Exception) -> contextlib.AbstractContextManager[Any]:
    """Inside, nothing is saved for backward. error : is raised where a tensor is asked for that was not saved."""

    def never(_: Any) -> Any:
        raise error

    return torch.autograd.graph.saved_tensors_hooks(lambda t: None, never)


def same(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    """Bitwise equality (NaN equals NaN); None equals None."""
    if a is None or b is None:
        return a is b
    if a.shape != b.shape or a.dtype != b.dtype or a.layout != b.layout:
        return False
    if len(dense_parts(a)) > 1:  # sparse
        return all(map(same, dense_parts(a), dense_parts(b)))
    return torch.equal(a, b) or bool(((a == b) | ((a != a) & (b != b))).all())

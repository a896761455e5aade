"""Questions of forward about values of its inputs and buffers, recorded so that a later call can answer them again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ..private import FakeTensor, pytree
from .recorded_ops import Held, RecordedOp, is_reference, result_of


@dataclass(frozen=True)
class QuestionSettings:
    """elements_most : a question is answered only if its ops compute at most so many elements, not all of which live at once.

    A guess. It admits the comparison that torch's own transformer makes of its mask, up to about 7,000 positions.
    """

    elements_most: int = 2**28


SETTINGS = QuestionSettings()


@dataclass(frozen=True)
class Question:
    """A question about inputs or buffers, and its answer. ops : recorded ops that answer it again; the last one asks."""

    ops: tuple[RecordedOp, ...]
    answer: bool

    def same(self, tensors: Sequence[torch.Tensor], model: nn.Module) -> bool:
        """Whether these inputs, and the model's buffers as they are now, give the same answer."""
        names = {x.name for x in pytree.tree_leaves(self.ops, is_leaf=is_reference) if isinstance(x, Held)}
        held = {k: t for k in names if isinstance(t := _attribute(model, k), torch.Tensor)}
        if len(held) < len(names) or any(isinstance(t, FakeTensor) for t in [*tensors, *held.values()]):
            return False  # fake tensors have no values
        return bool(self.answer == result_of(self.ops, tensors, held))


def _attribute(model: nn.Module, name: str) -> Any:
    """The attribute of this qualified name; None: there is none."""
    path, _, leaf = name.rpartition(".")
    try:
        return getattr(model.get_submodule(path), leaf)
    except AttributeError:
        return None

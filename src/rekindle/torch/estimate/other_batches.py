"""The sample of a model for another batch, made of the one that was given."""

from __future__ import annotations

from typing import Any

import torch

from ...errors import UsageError
from .. import accept
from ..tensors import tree


class OtherBatches:
    """Samples of other batches: the examples of the given one, over and over.

    batch : of the given sample, the first dimension that its tensors share. resized : how many tensors have it. words : says
    how the batch is changed.
    """

    def __init__(self, sample: Any) -> None:
        args, kwargs = accept.sample(sample)
        self._tensors, self._spec = tree.flatten((args, kwargs))
        self._as_tensor = isinstance(sample, torch.Tensor)
        sizes = [int(t.shape[0]) for t in self._tensors if t.dim()]
        if not sizes:
            raise UsageError("no tensor of the sample has a dimension, so that no other batch can be made of it")
        self.batch = max(dict.fromkeys(sizes), key=sizes.count)
        self.resized = sizes.count(self.batch)

    @property
    def words(self) -> str:
        return (
            f"the batch is the first dimension, {self.batch}, of {self.resized} of the sample's {len(self._tensors)} tensors; "
            "for other batches its examples are repeated"
        )

    def __call__(self, batch: int) -> Any:
        """The sample with this batch."""
        made = [self._of(t, batch) if t.dim() and t.shape[0] == self.batch else t for t in self._tensors]
        args, kwargs = tree.unflatten(made, self._spec)
        if kwargs:
            return kwargs
        return args[0] if self._as_tensor else args

    def _of(self, t: torch.Tensor, batch: int) -> torch.Tensor:
        if batch == self.batch or not self.batch:
            return t
        with torch.no_grad():
            whole = t.repeat(-(-batch // self.batch), *[1] * (t.dim() - 1))[:batch].clone()
        return whole.requires_grad_(t.requires_grad)

"""Steps of one part by itself, to measure the ways to run it that have no graph."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, TypeVar

import torch

from ..compiled.stage import Stage
from ..measure.as_before import as_before
from ..run.sample import copies, owned
from ..tensors import tree
from ..tensors.op_tensors import storage_of
from .finding import Unit

Self = TypeVar("Self", bound="TrialSteps")


class TrialSteps:
    """Steps of one part by itself, from copies of the inputs of its recorded call.

    twins : the tensors of the copied call. args, kwargs : the copied call.
    """

    def __init__(self, unit: Unit, device: torch.device):
        self.module, self.given, self.device = unit.module, unit.given, device
        self.twins: list[torch.Tensor] = []
        self.args: tuple[Any, ...] = ()
        self.kwargs: dict[str, Any] = {}

    @contextlib.contextmanager
    def ready(self: Self) -> Iterator[Self]:
        """Inside, steps can be run; afterwards the module is as before."""
        module, call = self.module, self.given.call
        owning = module.owning(call.tensors) if isinstance(module, Stage) else contextlib.nullcontext()
        with owning, self.given.surroundings(module), as_before(module):
            for p in module.parameters():
                p.grad = torch.zeros_like(p) if p.requires_grad else None
            self.twins = copies(call.tensors, owned(module))
            self.args, self.kwargs = call.form.arguments(tree.unflatten(self.twins, call.spec))
            yield self

    def bytes_made(self, result: Any) -> int:
        """Bytes of the storages in a result of the part that are none of its inputs'."""
        given = {id(storage_of(t)) for t in self.twins}
        made = {id(s): s.nbytes() for t in tree.tensors_in(result) if (s := storage_of(t)) is not None}
        return sum(n for k, n in made.items() if k not in given)

    def wait(self) -> None:
        """Wait until the device has done its work."""
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)

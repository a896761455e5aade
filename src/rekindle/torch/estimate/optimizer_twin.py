"""An optimizer with its state, on the fake parameters of a twin."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ..costs.optimizer_trial import optimizers_by_name, tensors_of_state, without_hooks
from .twin import Twin

log = logging.getLogger(__name__)


class OptimizerTwin:
    """The optimizers that step the fake parameters: the user's own copied, or made of a class or a name.

    refused : why a step cannot be run on fake tensors; "": it can.
    """

    def __init__(self, twin: Twin, given: Any, on_gpu: bool) -> None:
        self.refused = ""
        self._optimizers: list[Optimizer] = []
        trained: list[torch.Tensor] = []
        try:
            self._optimizers = list(_made(twin, given, on_gpu))
            trained = [p for o in self._optimizers for g in o.param_groups for p in g["params"] if p.requires_grad]
            for p in trained:
                p.grad = torch.empty_like(p)
        except Exception as e:  # an optimizer may do anything
            self._refuse(e)
        self.step()
        for p in trained:
            p.grad = None

    def step(self) -> None:
        """One step of every optimizer, unless one was refused before. The first one makes the state."""
        if self.refused:
            return
        try:
            with without_hooks():
                for o in self._optimizers:
                    o.step()
        except Exception as e:
            self._refuse(e)

    def _refuse(self, e: Exception) -> None:
        log.debug("the optimizer's step cannot be run on fake tensors: %s", e)
        self.refused = (str(e).strip().splitlines() or [type(e).__name__])[0]

    @property
    def state(self) -> list[torch.Tensor]:
        """The tensors of the state."""
        return [t for o in self._optimizers for t in tensors_of_state(o.state.values())]


def _made(twin: Twin, given: Any, on_gpu: bool) -> Iterator[Optimizer]:
    if twin.optimizer is not None:
        yield twin.optimizer
        return
    params = twin.trained
    if not params:
        return
    kind: Any = given
    options: dict[str, Any] = {}
    if isinstance(given, str):
        key = given.strip().lower()
        kind, options = optimizers_by_name()[key]
        if key == "muon":  # it takes matrices alone
            others = [p for p in params if p.ndim != 2]
            params = [p for p in params if p.ndim == 2]
            if others:
                yield _on(torch.optim.AdamW, others, {}, on_gpu)
            if not params:
                return
    yield _on(kind, params, options, on_gpu)


def _on(kind: Any, params: list[nn.Parameter], options: dict[str, Any], on_gpu: bool) -> Optimizer:
    made: Optimizer = kind(params, **options)
    if on_gpu:  # there PyTorch steps all parameters at once, with temporary memory for all of them
        for group in made.param_groups:
            if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                group["foreach"] = True
    return made

"""Models and samples as fake tensors on a GPU."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map


def on_fake_cuda(model: nn.Module, sample: Any) -> tuple[FakeTensorMode, nn.Module, Any]:
    """(the mode, the model, the sample): each tensor in place of which a fake one of the same shape stands, on the GPU."""
    mode = FakeTensorMode(allow_non_fake_inputs=True)
    known: dict[
        int, tuple[Any, torch.Tensor]
    ] = {}  # by id of the real tensor, which is kept so that the id stays its own

    def fake(t: Any) -> Any:
        if not isinstance(t, torch.Tensor):
            return t
        if id(t) not in known:
            with mode:
                made: torch.Tensor = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="cuda")
            made = (
                nn.Parameter(made, t.requires_grad)
                if isinstance(t, nn.Parameter)
                else made.requires_grad_(t.requires_grad)
            )
            known[id(t)] = made, t
        return known[id(t)][0]

    for m in model.modules():
        for table in (m._parameters, m._buffers):
            for name, t in table.items():
                table[name] = fake(t)
        if isinstance(m, nn.RNNBase):  # it holds its parameters a second time
            m._flat_weights = [fake(w) for w in m._flat_weights]
    return mode, model, tree_map(fake, sample)

"""Kernels that write running statistics without saying so: once each, or by an op of ours that returns them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import rekindle
from marks import every, few, sweep


@pytest.fixture
def cudnn() -> Any:
    """cuDNN's batch norm, played by the CPU's, which writes its running statistics unseen as well."""
    aten = torch.ops.aten
    calls = []

    def forward(x: Any, w: Any, b: Any, mean: Any, var: Any, training: bool, momentum: float, eps: float) -> Any:
        calls.append(mean is not None)
        out = aten.native_batch_norm(x, w, b, mean, var, training, momentum, eps)
        return (*out, x.new_empty(24, dtype=torch.uint8))

    def backward(x: Any, g: Any, w: Any, mean: Any, var: Any, saved: Any, rstd: Any, eps: float, reserve: Any) -> Any:
        assert reserve.numel() == 24
        return aten.native_batch_norm_backward(g, x, w, mean, var, saved, rstd, True, eps, [True] * 3)

    library = torch.library.Library("aten", "IMPL")
    library.impl("cudnn_batch_norm", forward, "CPU")
    library.impl("cudnn_batch_norm_backward", backward, "CPU")
    yield calls
    library._destroy()


class Unseen(nn.Module):
    def __init__(self, shared: bool) -> None:
        super().__init__()
        self.linears = nn.ModuleList(nn.Linear(16, 16) for _ in range(4))
        norms = [nn.BatchNorm1d(16) for _ in range(4)]
        self.norms = nn.ModuleList([norms[0]] * 4 if shared else norms)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for linear, n in zip(self.linears, self.norms, strict=True):
            state = (n.weight, n.bias, n.running_mean, n.running_var)
            x = torch.relu(torch.ops.aten.cudnn_batch_norm(linear(x), *state, self.training, 0.1, 1e-5)[0])
        return x.square().mean()


@pytest.mark.parametrize("shared", every(2, [False, True]))
def test_statistics_that_a_kernel_writes_unseen(cudnn: Any, shared: bool) -> None:
    """Run again, the kernel would write them again; and torch traces another kernel, whose bits may differ on a GPU."""
    torch.manual_seed(0)
    model, x = Unseen(shared), torch.randn(64, 16)
    trace = rekindle.trace(model, x)
    kept = [op.target for op in trace.graph.ops if "cudnn_batch_norm.default" in op.target]
    # Shared, the first to write would be open: an op of ours returns the new statistics.
    assert kept == ["rekindle.cudnn_batch_norm.default" if shared else "aten.cudnn_batch_norm.default"] * 4
    plan = rekindle.plan(trace, minimize="memory", solver="storages")
    names = [plan.graph.ops[o].name for o in plan.schedule.runs]
    assert sum("batch_norm" in name and "backward" not in name for name in names) > 4
    check = rekindle.verify(model, x, plan)
    assert check.ok
    if not shared:
        assert check.measured_peak_bytes == pytest.approx(plan.activation_peak_bytes, rel=0.02)
        rekindle.apply(model, plan)
        cudnn.clear()
        model(x).backward()
        assert cudnn.count(True) == 4
        assert cudnn.count(False) > 0


@sweep
@pytest.mark.parametrize("how", few(["dead", "dead without grad", "tied"], ["dead"]))
def test_unseen_statistics_that_the_graph_does_not_show(cudnn: Any, how: str) -> None:
    class Hides(Unseen):
        def __init__(self) -> None:
            super().__init__(shared=False)
            if how == "tied":
                self.register_buffer("other_name", self.norms[0].running_mean)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y, n = super().forward(x), self.norms[0]
            if how == "tied":
                return y * (self.other_name.mean() + 1)
            with torch.set_grad_enabled(how == "dead"):
                torch.ops.aten.cudnn_batch_norm(x, n.weight, n.bias, self.spare, self.spread, True, 0.1, 1e-5)
            return y

    torch.manual_seed(0)
    model, x = Hides(), torch.randn(64, 16)
    model.register_buffer("spare", torch.zeros(16))
    model.register_buffer("spread", torch.ones(16))
    for solver in ("none", "storages"):
        plan = rekindle.plan(rekindle.trace(model, x), minimize="memory", solver=solver)
        assert rekindle.verify(model, x, plan).differences == []


@sweep
def test_a_model_that_cannot_be_traced_with_such_a_kernel_is_traced_without(
    cudnn: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    """Taking torch's stand-in away may break a trace that works with it."""

    class Fragile(Unseen):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = super().forward(x)
            kernels = torch.ops.aten.cudnn_batch_norm.default.py_kernels
            stands_in = torch._C.DispatchKey.Autograd in kernels
            print(stands_in)  # a list would be put back: tracing leaves nothing behind
            if not stands_in:
                raise RuntimeError("no such kernel")
            return y

    torch.manual_seed(0)
    model, x = Fragile(shared=False), torch.randn(64, 16)
    trace = rekindle.trace(model, x)
    assert not any("cudnn_batch_norm.default" in op.name for op in trace.graph.ops)
    first, *others = capsys.readouterr().out.split()
    assert first == "False"
    assert set(others) == {"True"}
    assert rekindle.verify(model, x, rekindle.plan(trace, minimize="memory", solver="storages")).ok

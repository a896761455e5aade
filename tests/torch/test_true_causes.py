"""Models that no graph stands for train bit for bit around what stands in the way, and refusals name that and a way out."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.distributions import Normal, VonMises
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import rekindle
from refused import left_alone
from rekindle import PartsPlan, TraceError
from steps_compared import assert_same_steps

ROWS = 128
LEAST: dict[str, Any] = {"minimize": "memory", "effort": "quick", "progress": False, "cost": "flops"}


def block(n_in: int = 16) -> nn.Sequential:
    return nn.Sequential(nn.Linear(n_in, 64), nn.SiLU(), nn.Linear(64, 16))


def sample() -> Tensor:
    return torch.rand(ROWS, 16)


class Between(nn.Module):
    """Something of the user's between two blocks."""

    def __init__(self, call: Callable[[Tensor], Tensor], **held: Any):
        super().__init__()
        self.first, self.last, self.call = block(), block(), call
        for k, x in held.items():
            setattr(self, k, x)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.call(self.first(x)))


def refusal(model: nn.Module, given: Any = None) -> str:
    with left_alone(model), pytest.raises(TraceError) as e:
        rekindle.trace(model, sample() if given is None else given, target="h100")
    return str(e.value)


def trains_around(model: nn.Module, reason: str, given: Any = None) -> PartsPlan:
    """The plan of the model's parts, whose steps are compared with eager's. reason : what runs plain."""
    given, eager = sample() if given is None else given, copy.deepcopy(model)
    rekindle.checkpoint(model, given, **LEAST)
    plan = model.forward.plan
    assert isinstance(plan, PartsPlan)
    assert reason in plan.covered
    assert_same_steps(model, eager, lambda _: given)
    return plan


def trains_whole(model: nn.Module, given: Any = None) -> None:
    given, eager = sample() if given is None else given, copy.deepcopy(model)
    rekindle.checkpoint(model, given, **LEAST, strict=True)
    assert_same_steps(model, eager, lambda _: given)


# -- the gradient of an input, made twice ------------------------------------------------------------------------------
class Rounds(torch.autograd.Function):
    """Rounds to steps of a learned size."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, size: Tensor) -> Tensor:
        ctx.save_for_backward(x, size)
        return (x / size).clamp(-8, 7).round() * size

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, size = ctx.saved_tensors
        q = x / size
        low, high = (q < -8).float(), (q > 7).float()
        inside = 1 - low - high
        return inside * g, ((high * 7 - low * 8 + inside * (q.round() - q)) * g / math.sqrt(x.numel())).sum()[None]


class RoundedLinear(nn.Linear):
    def __init__(self, n_in: int, n_out: int):
        super().__init__(n_in, n_out)
        self.size = nn.Parameter(torch.tensor([0.1]))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(Rounds.apply(x, self.size))


def test_a_schedule_makes_the_gradient_of_an_input_once() -> None:
    """Autograd holds it from the moment when it is handed over, so freeing it meanwhile would gain nothing."""
    model, x = RoundedLinear(32, 4), torch.rand(64, 32, requires_grad=True)
    graph = rekindle.trace(model, x, loss="all", target="h100").graph
    theirs = [op for op in graph.ops if op.kind == "aten" and set(op.outputs) & set(graph.keep)]
    assert theirs
    again = [graph.ops.index(op) for op in theirs]
    runs = [i for i, op in enumerate(graph.ops) if graph.needed[i]]
    with pytest.raises(rekindle.FormatError, match="a second time"):
        rekindle.simulate(graph, rekindle.Schedule.from_runs(graph, [*runs, *again]))


def test_a_part_that_rounds_in_steps_of_a_learned_size() -> None:
    reads = lambda x: x * (1.0 if x.sum().item() > -1e9 else 2.0)  # noqa: E731
    model = nn.Sequential(RoundedLinear(16, 96), nn.Hardswish(), Between(reads), RoundedLinear(16, 4))
    model[2].first = RoundedLinear(96, 16)
    trains_around(model, "reads a tensor")


# -- TorchScript -------------------------------------------------------------------------------------------------------
class Counts(nn.Module):
    calls: int

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.calls = nn.Linear(16, 16), 0
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        self.seen = self.seen + 1
        return self.layer(x).relu()


def swish(x: Tensor) -> Tensor:
    return x * torch.sigmoid(1.5 * x)


def offsets(x: Tensor) -> Tensor:
    return torch.arange(x.size(1)).relu() * 2


SCRIPTED: dict[str, Callable[[], nn.Module]] = {
    "scripted": lambda: nn.Sequential(block(), torch.jit.script(block()), block()),
    "traced": lambda: nn.Sequential(block(), torch.jit.trace(block(), sample()), block()),
    "with a buffer that it sets": lambda: nn.Sequential(block(), torch.jit.script(Counts()), block()),
    "inside of a block": lambda: nn.Sequential(Between(torch.jit.script(nn.Sequential(nn.Linear(16, 16)))), block()),
    "a function": lambda: Between(torch.jit.script(swish)),
}


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::torch.jit.TracerWarning")
@pytest.mark.parametrize("name", SCRIPTED)
def test_parts_around_torchscript(name: str) -> None:
    model = SCRIPTED[name]()
    assert "TorchScript" in refusal(model)
    trains_around(model, "runs TorchScript")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_is_named_and_can_be_taken_out() -> None:
    inner = nn.Sequential(nn.Linear(16, 16), nn.ReLU())
    model = nn.Sequential(block(), Between(torch.jit.script(inner)))
    words = refusal(model)
    assert "the submodule '1.call'" in words
    assert "test_true_causes.py" in words
    model[1].call = inner
    trains_whole(model)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_torchscript_that_needs_no_gradient_is_captured() -> None:
    positions = torch.jit.script(offsets)
    trains_whole(Between(lambda x: x + positions(x)))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_planning_leaves_the_attributes_and_the_profile_of_torchscript_alone() -> None:
    """A scripted method that is first called without gradients computes them by other formulas ever after."""
    torch.manual_seed(0)
    plain = Between(swish)
    made = [Between(torch.jit.script(Counts())) for _ in range(2)]
    for m in made:
        m.first.load_state_dict(plain.first.state_dict())
        m.last.load_state_dict(plain.last.state_dict())
        m.call.layer.load_state_dict(nn.Linear(16, 16).state_dict())
        m.call.load_state_dict(made[0].call.state_dict())
    model, eager = made
    x = sample()
    rekindle.checkpoint(model, x, **LEAST)
    assert (model.call.calls, model.call.seen.item()) == (0, 0)
    assert_same_steps(model, eager, lambda _: x)


# -- checkpointing inside of forward -----------------------------------------------------------------------------------
class Inner(nn.Module):
    """Runs its layers inside of torch.utils.checkpoint."""

    def __init__(self, *layers: nn.Module, sequential: bool = False, **how: Any):
        super().__init__()
        self.layers, self.sequential, self.how = (
            nn.Sequential(nn.Linear(16, 64), *layers, nn.Linear(64, 16)),
            sequential,
            how,
        )

    def forward(self, x: Tensor) -> Tensor:
        if self.sequential:
            return checkpoint_sequential(self.layers, 2, x, use_reentrant=False)
        return checkpoint(self.layers, x, **({"use_reentrant": False} | self.how))  # type: ignore[no-any-return]


TWICE: dict[str, Callable[[], nn.Module]] = {
    "batch norm": lambda: Inner(nn.BatchNorm1d(64), nn.ReLU()),
    "in sequence": lambda: Inner(nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), sequential=True),
    "spectral norm": lambda: Inner(nn.utils.parametrizations.spectral_norm(nn.Linear(64, 64)), nn.ReLU()),
}


@pytest.mark.parametrize("name", TWICE)
def test_a_checkpoint_inside_that_writes_twice(name: str) -> None:
    """Eager updates statistics again where backward runs forward again: so do parts around it."""
    model = nn.Sequential(block(), TWICE[name](), block())
    words = refusal(model)
    assert "torch.utils.checkpoint at" in words
    assert "test_true_causes.py" in words
    assert "twice" in words
    assert "Switch that checkpointing off" in words
    trains_around(model, "runs torch.utils.checkpoint, which writes to")


@pytest.mark.parametrize(("how", "words"), [({"use_reentrant": True}, "use_reentrant=True"),
                                            ({"preserve_rng_state": False}, "preserve_rng_state=False")])  # fmt: skip
def test_a_checkpoint_inside_of_another_kind(how: dict[str, Any], words: str) -> None:
    model = nn.Sequential(block(), Inner(nn.ReLU(), nn.Dropout(0.3), **how), block())
    said = refusal(model)
    assert f"torch.utils.checkpoint with {words} at" in said
    assert "test_true_causes.py" in said
    model[1].how = {}
    trains_whole(model)


# -- code of the user's that runs in backward --------------------------------------------------------------------------
class Adjoint(torch.autograd.Function):
    """Three steps of Euler's method; backward goes the steps back, as a neural ODE does."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: nn.Module, *parameters: Tensor) -> Tensor:
        ctx.f = f
        with torch.no_grad():
            for _ in range(3):
                x = x + 0.1 * f(x)
        ctx.save_for_backward(x)
        return x

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (x,), f = ctx.saved_tensors, ctx.f
        parameters = list(f.parameters())
        sums = [torch.zeros_like(p) for p in parameters]
        for _ in range(3):
            with torch.enable_grad():
                x = x.detach().requires_grad_()
                of_x, *of_p = torch.autograd.grad(f(x), [x, *parameters], g * 0.1)
            g, sums = g + of_x, [a + b for a, b in zip(sums, of_p, strict=True)]
            x = x.detach() - 0.1 * f(x).detach()
        return (g, None, *sums)


class Reversed(torch.autograd.Function):
    """Calls backward() in backward, as reversible networks do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, f: nn.Module) -> Tensor:
        ctx.f = f
        ctx.save_for_backward(x)
        with torch.no_grad():
            return f(x)  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            ctx.f(x).backward(g)
        return x.grad, None


class Fills(torch.autograd.Function):
    """Adds to a parameter's .grad in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, m: nn.Linear) -> Tensor:
        ctx.m = m
        ctx.save_for_backward(x)
        return x @ m.weight.t()

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        w = ctx.m.weight
        made = g.t() @ ctx.saved_tensors[0]
        w.grad = made if w.grad is None else w.grad + made
        return g @ w, None


class Norms(torch.autograd.Function):
    """Keeps a running norm of the gradient in a buffer."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, m: nn.Module) -> Tensor:
        ctx.m = m
        return x * 2

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        ctx.m.norm.mul_(0.9).add_(g.norm() * 0.1)
        return g * 2, None


class Calls(nn.Module):
    """Calls a Function with a module that it reaches through `ctx`."""

    def __init__(self, function: Any, f: nn.Module, gives_parameters: bool = False):
        super().__init__()
        self.function, self.f, self.gives_parameters = function, f, gives_parameters
        self.register_buffer("norm", torch.zeros(()))

    def forward(self, x: Tensor) -> Tensor:
        f = self if self.function is Norms else self.f
        return self.function.apply(x, f, *(self.f.parameters() if self.gives_parameters else ()))  # type: ignore[no-any-return]


def test_an_adjoint_that_reaches_parameters_through_ctx() -> None:
    trains_whole(nn.Sequential(block(), Calls(Adjoint, block(), gives_parameters=True), block()))


def test_a_frozen_weight_that_only_backward_reads_through_ctx_may_be_replaced() -> None:
    class Reads(Fills):
        @staticmethod
        def backward(ctx: Any, g: Tensor) -> Any:
            return g @ ctx.m.weight, None

    model = nn.Sequential(block(), Calls(Reads, nn.Linear(16, 16, bias=False).requires_grad_(False)), block())
    trains_whole(model)
    rekindle.restore(model)
    eager, x = copy.deepcopy(model), sample()
    rekindle.checkpoint(model, x, **LEAST)
    for m in (model, eager):
        m[1].f.weight = nn.Parameter(torch.eye(16), requires_grad=False)
    assert_same_steps(model, eager, lambda _: x)


@pytest.mark.parametrize(("function", "words", "reason"), [
    (Reversed, "calls backward() itself at", "calls backward() in backward"),
    (Fills, "the Function Fills (test_true_causes.py:", "sets 1.f.weight.grad in backward"),
    (Norms, "the Function Norms (test_true_causes.py:", "sets 1.norm in backward"),
])  # fmt: skip
def test_a_function_that_changes_more_than_it_returns(function: Any, words: str, reason: str) -> None:
    model = nn.Sequential(block(), Calls(function, nn.Linear(16, 16, bias=False)), block())
    said = refusal(model)
    assert words in said
    assert "test_true_causes.py" in said
    assert "return" in said
    trains_around(model, reason)


# -- hooks -------------------------------------------------------------------------------------------------------------
def test_a_backward_hook_computes_with_what_a_forward_hook_left() -> None:
    model = nn.Sequential(block(), block(), block())

    def keep(m: Any, given: Any, made: Tensor) -> None:
        m.share = (made > 0).float().mean()

    model[1].register_forward_hook(keep)
    model[1].register_full_backward_hook(lambda m, got, given: (got[0] * m.share,))
    rekindle.checkpoint(model, sample(), **LEAST, strict=True)
    x, eager = sample(), copy.deepcopy(rekindle.restore(model))
    rekindle.checkpoint(model, x, **LEAST)
    assert_same_steps(model, eager, lambda _: x)


def test_hooks_that_make_gradients_of_each_sample_are_named() -> None:
    model = nn.Sequential(block(), block())

    def keep(m: Any, given: Any, made: Any) -> None:
        m.given = given[0].detach()

    def each(m: Any, got: Any, given: Any) -> None:
        m.weight.grad_sample = torch.einsum("ni,nj->nij", given[0], m.given)

    layers = [m for m in model.modules() if isinstance(m, nn.Linear)]
    hooks = [h for m in layers for h in (m.register_forward_hook(keep), m.register_full_backward_hook(each))]
    said = refusal(model)
    assert "0.0.weight.grad_sample" in said
    assert "take hooks off" in said
    for h in hooks:
        h.remove()
    trains_whole(model)


def test_a_hook_that_finds_an_emptied_list() -> None:
    model, seen = nn.Sequential(block(), block()), []
    model[1].register_forward_hook(lambda m, given, made: seen.append(made.detach()))
    model[1].register_full_backward_hook(lambda m, got, given: (got[0] * seen.pop().mean(),))
    said = refusal(model)
    assert "in backward fails at" in said
    assert "seen.pop()" in said
    assert "are empty again" in said
    assert seen == []


# -- sparse tensors ----------------------------------------------------------------------------------------------------
class Neighbours(nn.Module):
    """A graph convolution over an adjacency matrix that is a buffer."""

    def __init__(self, matrix: Tensor):
        super().__init__()
        self.first, self.last = block(), block()
        self.register_buffer("matrix", matrix)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sparse.mm(self.matrix, self.first(x)))  # type: ignore[no-any-return]


MATRIX = (torch.rand(ROWS, ROWS) < 0.05).float()


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
@pytest.mark.parametrize(
    "matrix", [MATRIX.to_sparse(), MATRIX.to_sparse().coalesce(), MATRIX.to_sparse_csr(), MATRIX.to_sparse_csc()]
)
def test_parts_around_a_sparse_buffer(matrix: Tensor) -> None:
    model = Neighbours(matrix)
    said = refusal(model)
    assert "works on a sparse tensor at" in said
    assert "test_true_causes.py" in said
    assert "to_dense()" in said
    eager = copy.deepcopy(model)
    rekindle.checkpoint(model, x := sample(), **LEAST)
    assert "works on a sparse tensor" in model.forward.plan.covered
    for m in (model, eager):  # which the comparison of steps cannot read
        m._buffers["matrix"], m.held = None, m.matrix
        m.__class__ = Held
    assert_same_steps(model, eager, lambda _: x)
    trains_whole(Neighbours(MATRIX))


class Held(Neighbours):
    def forward(self, x: Tensor) -> Tensor:
        return self.last(torch.sparse.mm(self.held, self.first(x)))  # type: ignore[no-any-return]


def test_a_sparse_buffer_that_forward_does_not_read() -> None:
    model = nn.Sequential(block(), block())
    model.register_buffer("matrix", MATRIX.to_sparse())
    rekindle.checkpoint(model, x := sample(), **LEAST, strict=True)
    eager = copy.deepcopy(rekindle.restore(model))
    rekindle.checkpoint(model, x, **LEAST)
    for m in (model, eager):
        del m.matrix
    assert_same_steps(model, eager, lambda _: x)


def test_an_embedding_with_sparse_gradients() -> None:
    model, words = nn.Sequential(nn.Embedding(9, 16, sparse=True), block()), torch.randint(0, 9, (8, 4))
    assert "sparse=False" in refusal(model, words)
    model[0].sparse = False
    trains_whole(model, words)


# -- distributions -----------------------------------------------------------------------------------------------------
def test_a_distribution_that_checks_its_arguments() -> None:
    def draws(validate: bool | None) -> nn.Module:
        return Between(lambda h: Normal(h, 1.0, validate_args=validate).rsample())

    assert "validate_args=False" in refusal(draws(None))
    trains_around(draws(None), "validate_args=False")
    trains_whole(draws(False))


def test_a_distribution_that_reads_values_whatever_it_checks() -> None:
    model = Between(lambda h: h + VonMises(h, torch.ones(16), validate_args=False).sample())
    assert "validate_args" not in refusal(model)


# -- others ------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("mark", [torch.profiler.record_function, torch.autograd.profiler.record_function])
def test_marks_for_profilers_in_forward(mark: Any) -> None:
    def named(x: Tensor) -> Tensor:
        with mark("between the blocks"):
            return x.tanh()

    trains_whole(Between(named))


def test_a_model_that_copies_a_planned_part_in_forward() -> None:
    class Copies(Between):
        def forward(self, x: Tensor) -> Tensor:
            with torch.no_grad():
                twin = copy.deepcopy(self.first)
                for p in twin.parameters():
                    p.mul_(0.5)
            return self.last(self.first(x) + twin.requires_grad_(False)(x))

    trains_around(Copies(nn.Identity()), "Copies")


def test_a_budget_that_parts_cannot_keep_says_why_there_are_parts() -> None:
    model = nn.Sequential(block(), Inner(nn.BatchNorm1d(64)), block())
    with pytest.raises(
        rekindle.InfeasibleBudget, match=r"As a whole .* because forward runs torch\.utils\.checkpoint at"
    ):
        rekindle.checkpoint(model, sample(), budget=0.01, effort="quick", progress=False, cost="flops")


def test_the_line_of_a_cause_is_no_line_of_torchs_call() -> None:
    said = refusal(nn.Sequential(block(), Between(lambda x: x * x.sum().item())))
    assert Path(__file__).name in said
    assert "module.py" not in said

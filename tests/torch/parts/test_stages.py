"""A forward cut into stages: where it is cut, which stages are equal, and the numbers of the model itself."""

from __future__ import annotations

import copy
import logging
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.fx import symbolic_trace
from torch.nn import functional as F

from rekindle.compiling import Compiled, CompileOptions
from rekindle.errors import RekindleError, RekindleWarning
from rekindle.torch.compiled import whole_graph
from rekindle.torch.compiled.compiled_forward import CompiledForward, settings
from rekindle.torch.compiled.compiler import compile_graph
from rekindle.torch.compiled.whole_graph import StagedForward

LOGGER = logging.getLogger("a model's own")


def block() -> nn.Module:
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(inplace=True), nn.Linear(16, 8))


class Blocks(nn.Module):
    """Weights before and after the blocks, a mask in forward, a residual between blocks, and a loss that logs."""

    def __init__(self, depth: int = 3):
        super().__init__()
        self.first, self.blocks = nn.Linear(8, 8), nn.ModuleList(block() for _ in range(depth))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, mask = self.first(x), torch.arange(8) % 2
        for b in self.blocks:
            x = x + mask * b(x)
        LOGGER.warning("a loss")
        return x.square().mean()


class Across(Blocks):
    """Results are handed across blocks, as in a U-Net."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kept = []
        for b in self.blocks:
            x = b(x)
            kept.append(x)
        return torch.stack(kept).sum()


class Writes(Blocks):
    """A block's result is written to behind it, where the block may have saved it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            x = b(x)
            y = self.first(x)
            x += y.detach()
        return x.sum()


class Pieces(Blocks):
    """A result that is no tensor goes from one block to the next."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        pieces = torch.split(self.blocks[0](x), 4, -1)
        return self.blocks[1](torch.cat(pieces[::-1], -1)).sum() + self.blocks[2](x).sum()


class OneAgain(nn.Module):
    """One layer, called several times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = block()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            x = x + self.layer(x)
        return x.sum()


class Counts(nn.Module):
    """A buffer that each block writes to, and a block that differs from the others."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8)) for _ in range(3))
        self.blocks.append(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            x = b(x)
        return x.square().sum()


def closure(number: int) -> object:
    def scaled(x: torch.Tensor) -> torch.Tensor:
        return x * number

    return torch.compiler.allow_in_graph(scaled)


class Closures(nn.Module):
    """Blocks that differ in a function alone, which has one name in all of them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(3))
        for i, b in enumerate(self.blocks):
            b[1] = Calls(closure(i + 2))  # type: ignore[index]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for b in self.blocks:
            x = b(x)
        return x.sum()


class Calls(nn.Module):
    def __init__(self, function: object):
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.function(x)  # type: ignore[operator, no-any-return]


class Leaky(Blocks):
    """The next block writes to what a block returns, and may have saved."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Sequential(nn.LeakyReLU(0.1, True), nn.Linear(8, 8)) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for b in self.blocks:
            x = b(x)
        return x.sum()


class OtherAttention(Blocks):
    """Blocks inside of a state of the process."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
            for b in self.blocks:
                x = b(x)
        return self.first(x).sum()


ROW = [f"blocks.{i}" for i in range(3)]
EXPECTED = {
    "blocks": (Blocks, ["before blocks.0", *ROW, "after blocks.2"], 4),  # the last one's residual lies behind it
    "across": (Across, [*ROW, "after blocks.2"], 3),  # the first has an input without gradient
    "writes": (Writes, ["blocks.0", "blocks.1", "blocks.2", "after blocks.2"], None),
    "pieces": (Pieces, ["blocks.0", "blocks.1", "blocks.2", "after blocks.2"], None),
    "one again": (OneAgain, ["layer", "layer #2", "layer #3", "after layer"], None),
    "counts": (Counts, [*ROW, "blocks.3", "after blocks.3"], None),
    "closures": (Closures, [*ROW, "after blocks.2"], 4),
    "a chain of layers": (
        lambda: nn.Sequential(*(m for _ in range(3) for m in (nn.Linear(8, 8), nn.Tanh()))),
        None,
        None,
    ),
}


def trained(model: nn.Module, forward: object, x: torch.Tensor) -> list[torch.Tensor]:
    result = forward(x)  # type: ignore[operator]
    result.sum().backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    return [result.detach(), *gradients, *model.buffers()]


@pytest.mark.parametrize("name", EXPECTED)
def test_stages_have_the_numbers_of_the_model(name: str) -> None:
    torch.manual_seed(0)
    make, paths, kinds = EXPECTED[name]
    model, x = make(), torch.randn(16, 8)
    twin, staged = copy.deepcopy(model), StagedForward(model, CompileOptions(), None)
    staged.raises = True
    ours, theirs = trained(model, staged, x), trained(twin, twin, x)
    assert len(ours) == len(theirs)
    assert all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))
    found = [s.path for s in staged.stages]
    assert len(found) > 1
    if paths is not None:
        assert set(found) <= set(paths), found
    if kinds is not None:
        assert [*found] == paths
        assert len({s.kind for s in staged.stages}) == kinds


@pytest.mark.parametrize(("make", "most"), [(Writes, 3), (Leaky, 2), (OtherAttention, 2)])
def test_what_must_not_be_cut_is_one_stage(make: type[nn.Module], most: int) -> None:
    model, x = make(), torch.randn(4, 8)
    staged = StagedForward(model, CompileOptions(), None)
    staged.raises = True
    assert torch.equal(staged(x), model(x))
    assert 0 < len(staged.stages) <= most


class Tells(Blocks):
    """Returns what lies between blocks, and what lies in the last stage."""

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:  # type: ignore[override]
        x = between = self.blocks[0](self.first(x))
        inside = self.blocks[1](x).tanh()
        return inside.square().mean(), between, inside


def compiled_stages(model: nn.Module, x: torch.Tensor) -> StagedForward:
    """The forward in stages, all of them compiled."""
    staged = StagedForward(model, CompileOptions(), None)
    staged(x)
    staged.run_by({stage.path: Compiled() for stage in staged.stages})
    return staged


@pytest.mark.parametrize(("at", "compiled", "refused"), [(1, True, False), (2, True, True), (2, False, False)])
def test_a_look_at_a_gradient_that_stays_in_a_stage_is_refused(at: int, compiled: bool, refused: bool) -> None:
    model, x = Tells(), torch.randn(4, 8)
    staged = compiled_stages(model, x) if compiled else StagedForward(model, CompileOptions(), None)
    results, own = staged(x), model(x)
    results[0].backward()
    results = staged(x)
    for r in (results, own):
        r[at].retain_grad()
    own[0].backward()
    if refused:
        with pytest.raises(RekindleError, match=r"a result of shape \[4, 8\], from which compiled code goes on"):
            results[0].backward()
    else:
        results[0].backward()
        torch.testing.assert_close(results[at].grad, own[at].grad)


def test_a_look_at_a_gradient_that_stays_in_a_compiled_part_is_refused() -> None:
    part, x = Tells(), torch.randn(4, 8)
    compiled = CompiledForward(part, Compiled(), CompileOptions(), "")
    for at in (0, 1):
        results = compiled(x)
        results[at].retain_grad()
        if at == 0:
            results[0].backward()
    with pytest.raises(RekindleError, match=r"a result of shape \[4, 8\], from which compiled code goes on"):
        results[0].backward()


ENDS = "backward ends at a result, .* from which compiled code goes on"


@pytest.mark.parametrize("staged", [True, False])
def test_a_backward_that_ends_at_a_result_is_eagers_or_refused(staged: bool) -> None:
    model, x = Tells(), torch.randn(4, 8)
    call = compiled_stages(model, x) if staged else CompiledForward(model, Compiled(), CompileOptions(), "")
    both: Any = (call, model)
    for asked, used, refused in [(2, (0, 2), True), (2, (0,), True), (0, (0, 2), False), (2, (2,), False)]:
        found = []
        for forward in both:
            results = forward(x)
            loss = sum(results[i].square().sum() for i in used)
            if refused and forward is call:
                with pytest.raises(RekindleError, match=ENDS):
                    torch.autograd.grad(loss, results[asked], retain_graph=True, allow_unused=True)
                with pytest.raises(RekindleError, match="from which compiled code goes on"):
                    loss.backward(inputs=[results[asked]])
            elif not refused:
                found += torch.autograd.grad(loss, results[asked], retain_graph=True)
                loss.backward()
                found.append(model.first.weight.grad)
                model.zero_grad()
        for ours, eager in zip(found[: len(found) // 2], found[len(found) // 2 :], strict=True):
            torch.testing.assert_close(ours, eager)


def test_another_mode_of_the_model_does_not_stick() -> None:
    model, x = Blocks().eval(), torch.randn(4, 8)
    whole_graph.staged(model, CompileOptions(), None)
    staged = whole_graph.staged(model.train(), CompileOptions(), None)
    staged(x)
    assert staged.stages


def test_other_flags_are_other_kinds() -> None:
    found = []
    for mode in (False, True):
        torch.use_deterministic_algorithms(mode)
        try:
            model = Blocks()
            staged = StagedForward(model, CompileOptions(), None)
            staged(torch.randn(4, 8))
            found.append({s.kind for s in staged.stages})
        finally:
            torch.use_deterministic_algorithms(False)
    assert not found[0] & found[1]


def test_neighbours_are_joined_until_there_are_few_kinds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(whole_graph, "KINDS_MOST", 2)
    model = nn.ModuleList(nn.Sequential(nn.Linear(n, n + 1), nn.Tanh()) for n in range(8, 14))

    class Grows(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.blocks = model

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            for b in self.blocks:
                x = b(x)
            return x.sum()

    grows = Grows()
    staged = StagedForward(grows, CompileOptions(), None)
    staged.raises = True
    x = torch.randn(4, 8)
    assert torch.equal(staged(x), grows(x))
    assert len(staged.stages) == 2
    assert all(" to " in s.path for s in staged.stages)


def test_another_graph_of_one_model_shares_its_stages() -> None:
    model = Blocks()
    staged = StagedForward(model, CompileOptions(), None)
    staged(torch.randn(4, 8))
    before = {s.path: s for s in staged.stages}
    model.anything = 3  # type: ignore[assignment]
    staged(torch.randn(4, 8))
    staged(torch.randn(5, 8))  # another shape: other kinds
    assert all(before[s.path] is s for s in staged.stages[: len(before)])
    assert len(staged.stages) == 2 * len(before)


@pytest.mark.parametrize("saves", ["min-cut", "costly"])
def test_no_size_of_a_stage_becomes_a_symbol(saves: str) -> None:
    """Kernels for symbols are slower, and the FLOPs of a product are no number then."""
    x, weight = torch.randn(4, 8, 16, requires_grad=True), torch.randn(32, 16, requires_grad=True)
    body = symbolic_trace(lambda x, w: F.log_softmax(F.linear(x.float().view(-1, 16), w), -1))
    for _ in range(2):
        result = compile_graph(body, [x, weight], settings(Compiled(saves), CompileOptions()))(x, weight)
        assert not hasattr(result, "_dynamo_propagated_dynamic_indices")
        result.sum().backward()


class Longer(Blocks):
    """Forward may call a block more."""

    more = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for b in [*self.blocks, self.blocks[0]] if self.more else self.blocks:
            x = x + b(x)
        return x.square().mean()


def test_stages_that_the_plan_does_not_know_are_told_of() -> None:
    model, x = Longer(), torch.randn(4, 8, requires_grad=True)
    staged = StagedForward(model, CompileOptions(), None)
    staged.run_by({"blocks.1": Compiled()}, ["blocks.0", "blocks.1", "blocks.2", "after blocks.2"])
    with warnings.catch_warnings():
        warnings.simplefilter("error", RekindleWarning)
        staged(x)
    model.more = True
    with pytest.warns(RekindleWarning, match="stages that its plan does not know"):
        result = staged(x)
    torch.testing.assert_close(result, model(x))
    assert {s.path: vars(s)["forward"].way for s in staged.stages if "forward" in vars(s)} == {
        "blocks.1": Compiled(),
        "blocks.0 #2": Compiled("inputs"),
        "after blocks.0": Compiled("inputs"),
    }

"""A model of blocks, sharded by fully_shard and planned, in every order: scenes for two processes."""

from __future__ import annotations

import copy
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.utils._python_dispatch import TorchDispatchMode

import rekindle
from asked import searches
from processes import error_of
from rekindle.torch.measure.memory import allocator_peak

QUICK: dict[str, Any] = {"minimize": "memory", "effort": "quick", "progress": False}
PARALLEL = {"up": ColwiseParallel(), "down": RowwiseParallel()}
BF16 = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


class Block(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.norm, self.drop = nn.LayerNorm(width), nn.Dropout(0.1)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(nn.functional.gelu(self.up(self.norm(x)))))


class Net(nn.Module):
    def __init__(self, blocks: int = 3, width: int = 32) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, width), nn.Linear(width, 8)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return self.last(x).square().mean()


def sample() -> torch.Tensor:
    return torch.randn(4, 16, 8, generator=torch.Generator().manual_seed(5))


def hidden() -> torch.Tensor:
    """What a block is called with."""
    return torch.randn(4, 16, 32, requires_grad=True)


def mesh() -> Any:
    return init_device_mesh("cpu", (2,))


def shard(model: nn.Module, **options: Any) -> nn.Module:
    on = mesh()
    for block in model.blocks:
        fully_shard(block, mesh=on, **options)
    return fully_shard(model, mesh=on, **options)


def whole(p: torch.Tensor) -> torch.Tensor:
    return (p.full_tensor() if hasattr(p, "full_tensor") else p).detach()


def trained(model: nn.Module, rank: int, steps: int = 3) -> list[torch.Tensor]:
    """Losses of some steps, and the parameters after them."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    losses = []
    for i in range(steps):
        torch.manual_seed(10 * i + rank)
        losses.append(model(sample() * (rank + 1)))
        losses[-1].backward()
        optimizer.step()
        optimizer.zero_grad()
    return [*(x.detach() for x in losses), *(whole(p) for p in model.parameters())]


def saved(model: nn.Module) -> list[tuple[str, str]]:
    """Names and types in the state_dict after a forward alone, which leaves some parameters whole."""
    with torch.no_grad():
        model(sample())
    return [(k, type(x).__name__) for k, x in model.state_dict().items()]


def compared(model: nn.Module, twin: nn.Module, rank: int) -> dict[str, Any]:
    """Whether both train alike and save alike, which blocks ran by a plan, and the first words of each warning."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mine = trained(model, rank)
    theirs = trained(twin, rank)
    return {
        "same": all(torch.equal(a, b) for a, b in zip(mine, theirs, strict=True)),
        "planned": [getattr(b.forward, "last", None) is not None for b in getattr(model, "blocks", [model])],
        "warnings": [str(w.message)[:80] for w in caught if issubclass(w.category, rekindle.RekindleWarning)],
        "keys": saved(model) == saved(twin),
    }


def with_twin(**options: Any) -> tuple[Net, nn.Module]:
    """A model that is not sharded yet, and a sharded one with the same parameters. options : of fully_shard."""
    model = Net()
    return model, shard(copy.deepcopy(model), **options)


def plan_of_a_block(model: Net) -> rekindle.Plan:
    other = rekindle.checkpoint(copy.deepcopy(model.blocks[0]), hidden(), **QUICK)
    return other.forward.plan


# -- planned first, then sharded ---------------------------------------------------------------------------------------
def blocks(rank: int) -> Any:
    model, twin = with_twin()
    for block in model.blocks:
        rekindle.checkpoint(block, hidden(), **QUICK)
    return compared(shard(model), twin, rank)


def parts(rank: int) -> Any:
    model, twin = with_twin()
    rekindle.checkpoint(model, sample(), parts="blocks.*", **QUICK)
    return compared(shard(model), twin, rank)


def one_plan_for_all_blocks(rank: int) -> Any:
    model, twin = with_twin()
    plan = plan_of_a_block(model)
    for block in model.blocks:
        rekindle.apply(block, plan)
    return compared(shard(model), twin, rank)


def kept_whole_after_forward(rank: int) -> Any:
    model, twin = with_twin(reshard_after_forward=False)
    rekindle.checkpoint(model, sample(), parts="blocks.*", **QUICK)
    return compared(shard(model, reshard_after_forward=False), twin, rank)


def mixed_precision(rank: int) -> Any:
    """The blocks are called in bfloat16, for which they were not planned."""
    model, twin = with_twin(mp_policy=BF16)
    rekindle.checkpoint(model, sample(), parts="blocks.*", **QUICK)
    with searches("auto") as found:
        seen = compared(shard(model, mp_policy=BF16), twin, rank)
    return seen | {"searched twice": len(found) - len({p.graph.hash for p in found})}


def whole_then_root(rank: int) -> Any:
    model = Net()
    twin = fully_shard(copy.deepcopy(model), mesh=mesh())
    rekindle.checkpoint(model, sample(), **QUICK)
    seen = compared(fully_shard(model, mesh=mesh()), twin, rank)
    return seen | {"planned": [model.forward.last is not None]}


# -- sharded first -----------------------------------------------------------------------------------------------------
def plan_on_sharded_blocks(rank: int) -> Any:
    model, twin = with_twin()
    plan = plan_of_a_block(model)
    shard(model)
    for block in model.blocks:
        rekindle.apply(block, plan)
    return compared(model, twin, rank)


def file_on_sharded_blocks(rank: int) -> Any:
    model, twin = with_twin()
    with tempfile.TemporaryDirectory() as folder:
        plan_of_a_block(model).save(f"{folder}/plan.json")
        plan = rekindle.load(f"{folder}/plan.json")
    shard(model)
    for block in model.blocks:
        rekindle.apply(block, plan)
    return compared(model, twin, rank)


def planned_after_sharding(rank: int) -> Any:
    """All processes plan together, by steps in which parameters and gradients travel."""
    model, twin = with_twin()
    rekindle.checkpoint(shard(model), sample(), **QUICK)
    return compared(model, twin, rank) | {"plan": plan_of(model)}


def named_after_sharding(rank: int) -> Any:
    model, twin = with_twin(mp_policy=BF16)
    rekindle.checkpoint(shard(model, mp_policy=BF16), sample(), parts="blocks.*", **QUICK)
    return compared(model, twin, rank) | {"plan": plan_of(model)}


def other_shapes_on_one_rank(rank: int) -> Any:
    """Each process trains on a batch of its own size."""
    model, twin = with_twin()
    x = sample().repeat(rank + 1, 1, 1)
    rekindle.checkpoint(shard(model), x, **QUICK)
    losses = []
    for net in (model, twin):
        torch.manual_seed(rank)
        losses.append(net(x))
        losses[-1].backward()
    same = all(
        torch.equal(whole(p.grad), whole(q.grad)) for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )
    return compared(model, twin, rank) | {"loaded": same and torch.equal(*losses)}


class Deciding(Block):
    """Forward reads a tensor, so that the block cannot be captured."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) if x.abs().max().item() < 1e9 else x


def runs_again_when_sharded(rank: int) -> Any:
    model = Net()
    for block in model.blocks:
        block.__class__ = Deciding
    twin = shard(copy.deepcopy(model))
    rekindle.checkpoint(shard(model), sample(), **QUICK)
    again = [p.again for p in model.forward.plan.parts]
    return compared(model, twin, rank) | {"planned": [True, True, True], "loaded": any(again)}


def root_sharded_and_planned(rank: int) -> Any:
    model = Net()
    twin = fully_shard(copy.deepcopy(model), mesh=mesh())
    rekindle.checkpoint(fully_shard(model, mesh=mesh()), sample(), **QUICK)
    return compared(model, twin, rank) | {"plan": plan_of(model)}


def budget_of_a_sharded_step(rank: int) -> Any:
    """The peak of a real step, with gradients that are there already, is the predicted one."""
    model, twin = with_twin()
    x = torch.randn(512, 16, 8, generator=torch.Generator().manual_seed(5))
    rekindle.checkpoint(shard(model), x, 0.5, progress=False)
    peaks = []
    for net in (model, twin):
        torch.manual_seed(rank)
        net(x).backward()
        peaks.append(allocator_peak(lambda net=net: net(x).backward(), torch.device("cpu")).peak_bytes)
    plan = model.forward.plan
    off = [
        (plan.resident_bytes + p) / said - 1
        for p, said in zip(peaks, (plan.peak_bytes, plan.baseline_peak_bytes), strict=True)
    ]
    return compared(model, twin, rank) | {
        "off": max(map(abs, off)),
        "share": peaks[0] / peaks[1],
        "plan": plan_of(model),
    }


def plan_of(model: nn.Module) -> list[Any]:
    """The path and the schedules of each part."""
    return [[p.path, *(list(map(str, x.schedule.steps)) for x in p.plans)] for p in model.forward.plan.parts]


def strictly_after_sharding(rank: int) -> Any:
    return error_of(lambda: rekindle.checkpoint(shard(Net()), sample(), strict=True, **QUICK))


def around_sharded_blocks(rank: int) -> Any:
    model = nn.Sequential(shard(Net()), nn.Identity())
    return error_of(lambda: rekindle.checkpoint(model, sample(), parts="0", **QUICK))


# -- a whole plan around sharded blocks, and other refusals ----------------------------------------------------------
def whole_then_blocks(rank: int) -> Any:
    model = shard(rekindle.checkpoint(Net(), sample(), **QUICK))
    with ran() as ops:
        error = error_of(lambda: model(sample()))
    return error | {"ran": [op for op in ops if "linear" in op or "addmm" in op]}


def whole_then_blocks_plain(rank: int) -> Any:
    """Calls without a plan run plain, as the user says."""
    model, twin = with_twin()
    rekindle.checkpoint(model, sample(), on_new_shape="plain", **QUICK)
    return compared(shard(model), twin, rank)


def planned_then_parallel(rank: int) -> Any:
    model = Net()
    rekindle.checkpoint(model, sample(), parts="blocks.*", **QUICK)
    parallelize_module(model.blocks[0], mesh(), PARALLEL)
    return error_of(lambda: model(sample()))


def parallel_then_planned(rank: int) -> Any:
    return error_of(lambda: rekindle.checkpoint(parallelize_module(Block(), mesh(), PARALLEL), hidden(), **QUICK))


def tensor_parallel_beside(rank: int) -> Any:
    """Parts that are not parallelised are planned in a model that is."""
    model = Net()
    twin = copy.deepcopy(model)
    rekindle.checkpoint(model, sample(), parts=["blocks.0", "blocks.1"], **QUICK)
    for net in (model, twin):
        parallelize_module(net.blocks[2], mesh(), PARALLEL)
    return compared(model, twin, 0)


# -- what goes on around ---------------------------------------------------------------------------------------------
def saved_and_loaded(rank: int) -> Any:
    """A distributed checkpoint of a planned, sharded model is read by a plain one, and the other way round."""
    model, twin = with_twin()
    rekindle.checkpoint(model, sample(), parts="blocks.*", **QUICK)
    shard(model)
    trained(model, rank, 1)
    folder = [tempfile.mkdtemp() if rank == 0 else ""]
    dist.broadcast_object_list(folder)
    dcp.save({"model": get_model_state_dict(model)}, checkpoint_id=folder[0])
    state = {"model": get_model_state_dict(twin)}
    dcp.load(state, checkpoint_id=folder[0])
    set_model_state_dict(twin, state["model"])
    same = all(torch.equal(whole(p), whole(q)) for p, q in zip(model.parameters(), twin.parameters(), strict=True))
    return compared(model, twin, rank) | {"loaded": same}


def restored(rank: int) -> Any:
    model, twin = with_twin()
    rekindle.checkpoint(model, sample(), parts="blocks.*", **QUICK)
    shard(model)
    trained(model, rank, 1)
    trained(twin, rank, 1)
    rekindle.restore(model)
    return compared(model, twin, rank)


def data_parallel_module(rank: int) -> Any:
    return error_of(lambda: rekindle.checkpoint(nn.parallel.DistributedDataParallel(Net()), sample(), **QUICK))


@contextmanager
def ran() -> Iterator[list[str]]:
    """Names of the operators that run meanwhile."""
    found: list[str] = []

    class Noted(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            found.append(str(func))
            return func(*args, **(kwargs or {}))

    with Noted():
        yield found


PLANNED = (
    blocks, parts, one_plan_for_all_blocks, kept_whole_after_forward, mixed_precision, whole_then_root,
    plan_on_sharded_blocks, file_on_sharded_blocks, planned_after_sharding, named_after_sharding, root_sharded_and_planned,
    budget_of_a_sharded_step, other_shapes_on_one_rank, runs_again_when_sharded,
    whole_then_blocks_plain, tensor_parallel_beside, saved_and_loaded,
    restored,
)  # fmt: skip
PLANNED_BLOCKS = {  # scene -> which blocks ran by a plan, where it is not all three
    "whole_then_root": [True], "whole_then_blocks_plain": [False] * 3, "restored": [False] * 3,
    "tensor_parallel_beside": [True, True, False],
}  # fmt: skip
WARNINGS = {
    "whole_then_blocks_plain": ["Net was called with inputs [4, 16, 8], and was planned, but its parameter 'block"]
}

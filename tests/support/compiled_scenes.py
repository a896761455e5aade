"""Models whose parts run through torch.compile, in two processes: DistributedDataParallel and fully_shard."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

import rekindle
from compiled_steps import trained
from rekindle.compiling import Compiled
from rekindle.torch.parts.applied import forwards_of

HOW: dict[str, Any] = {"compile": True, "effort": "quick", "progress": False}


class Block(nn.Module):
    """A feed-forward block."""

    def __init__(self, width: int = 32):
        super().__init__()
        self.up, self.down, self.drop = nn.Linear(width, 4 * width), nn.Linear(4 * width, width), nn.Dropout(0.1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.drop(self.down(nn.functional.gelu(self.up(x))))


class Net(nn.Module):
    """Four equal blocks."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x.square().mean()


def sample() -> torch.Tensor:
    return torch.randn(32, 16, 32)


def both() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """The same model planned, and with its parts compiled without a plan."""
    x = sample()
    planned = rekindle.checkpoint(Net(), x, 0.5, parts="blocks.*", **HOW)
    twin = copy.deepcopy(planned)
    for _, forward in forwards_of(twin):
        forward.way = Compiled()  # type: ignore[union-attr]
    return planned, twin, x


def seen(planned: nn.Module, twin: nn.Module, x: torch.Tensor, ways: list[str]) -> Any:
    pairs = [*zip(trained(planned, x), trained(twin, x), strict=True)]
    return {"apart": max(float((a - b).abs().max()) for a, b in pairs), "ways": ways}


def data_parallel(rank: int) -> Any:
    """One plan for both processes, then DistributedDataParallel."""
    planned, twin, x = both()
    ways = [p.compiled.saves for p in planned.forward.plan.parts]
    return seen(DistributedDataParallel(planned), DistributedDataParallel(twin), x, ways)


def accumulating(rank: int) -> Any:
    """A static graph, and a backward whose gradients are not sent."""
    planned, twin, x = both()
    ways, found = [p.compiled.saves for p in planned.forward.plan.parts], []
    for model in (planned, twin):
        torch.manual_seed(2)
        together = DistributedDataParallel(model, static_graph=True)
        together(x).backward()  # the first backward of a static graph must be sent
        for _ in range(3):
            with together.no_sync():
                together(x + rank).backward()
            together(x - rank).backward()
        found.append([p.grad for p in model.parameters()])
    apart = max(float((a - b).abs().max()) for a, b in zip(*found, strict=True))
    return {"apart": apart, "ways": ways}


def sharded(rank: int) -> Any:
    """One plan for both processes, then fully_shard for each block."""
    planned, twin, x = both()
    ways = [p.compiled.saves for p in planned.forward.plan.parts]
    for model in (planned, twin):
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return seen(planned, twin, x, ways)


def sharded_first(rank: int) -> Any:
    """The model is sharded before it is planned: by all processes together."""
    model, x = Net(), sample()
    for m in model.modules():
        if isinstance(m, nn.Dropout):  # whose masks are not eager's
            m.p = 0.0
    twin = copy.deepcopy(model)
    for net in (model, twin):
        for block in net.blocks:
            fully_shard(block)
        fully_shard(net)
    rekindle.checkpoint(model, x, 0.5, **HOW)
    plan = model.forward.plan
    checked = rekindle.verify(model, x)
    return seen(model, twin, x, [p.compiled.saves for p in plan.parts]) | {
        "fits": checked.ok,
        "peak_error": checked.peak_error,
    }


def copying() -> tuple[nn.Module, nn.Module, torch.Tensor]:
    """The same model planned with copies to the host, and the same ways without copies."""
    x = sample()
    planned = rekindle.checkpoint(Net(), x, minimize="memory", offload=True, parts="blocks.*", **HOW)
    plan, twin = planned.forward.plan, copy.deepcopy(planned)
    assert len(plan.host_blocks) > 1
    stays = replace(plan, parts=tuple(replace(p, offloaded=None) for p in plan.parts))
    return planned, rekindle.apply(twin, stays), x


def data_parallel_copying(rank: int) -> Any:
    """DistributedDataParallel, with copies."""
    planned, twin, x = copying()
    return seen(DistributedDataParallel(planned), DistributedDataParallel(twin), x, ["copies"])


def sharded_copying(rank: int) -> Any:
    """fully_shard, with copies of what each block saves beside the parameters that come and go."""
    planned, twin, x = copying()
    for model in (planned, twin):
        for block in model.blocks:
            fully_shard(block)
        fully_shard(model)
    return seen(planned, twin, x, ["copies"])


SCENES = (data_parallel_copying, sharded_copying, data_parallel, accumulating, sharded, sharded_first)

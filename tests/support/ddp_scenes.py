"""A planned model in DistributedDataParallel: scenes for two processes."""

from __future__ import annotations

import copy
import time
import warnings
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils._python_dispatch import TorchDispatchMode

import rekindle
from rekindle.saying.notices import is_first_process
from sharded_scenes import QUICK, Net, sample


def both(**options: Any) -> tuple[nn.Module, nn.Module]:
    """The same model planned and plain, each in DDP."""
    model = Net()
    twin = DistributedDataParallel(copy.deepcopy(model), **options)
    return DistributedDataParallel(rekindle.checkpoint(model, sample(), **QUICK), **options), twin


def another_shape_on_one_rank(rank: int) -> Any:
    """One process meets two new batch sizes while the other one goes on."""
    planned, plain = both()
    batches = [sample(), sample()[: 3 if rank else 4], sample(), sample()[: 2 if rank else 4], sample()]
    same, longest = [], 0.0
    for i, batch in enumerate(batches):
        gradients = []
        for net in (planned, plain):
            torch.manual_seed(i)
            net.zero_grad()
            begin = time.monotonic()
            net(batch).backward()
            longest = max(longest, time.monotonic() - begin)
            gradients.append([p.grad.clone() for p in net.parameters()])
        same.append(all(map(torch.equal, *gradients)))
    return {"same": same, "plans": len(list(planned.module.forward.bounds)), "longest": longest}


def gradients_arrive_one_after_the_other(rank: int) -> Any:
    """Buckets are sent while backward still runs: how many operators had run when each was ready, as a share of all."""
    planned, _ = both(bucket_cap_mb=0.01)
    arrived: list[int] = []

    class Count(TorchDispatchMode):
        ran = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            Count.ran += 1
            return func(*args, **(kwargs or {}))

    def note(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        arrived.append(Count.ran)
        done: torch.futures.Future[torch.Tensor] = torch.futures.Future()
        done.set_result(bucket.buffer())
        return done

    note.__annotations__.clear()  # they are strings here, and DDP wants classes
    planned.register_comm_hook(None, note)
    planned(sample()).backward()  # DDP arranges its buckets in the order of the first step
    loss = planned(sample())
    arrived.clear()
    with Count():
        loss.backward()
    return [n / Count.ran for n in arrived]


class Answering(nn.Module):
    """Returns its loss and what it is made of, which the loop does not read."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()

    def forward(self, x: torch.Tensor) -> dict[str, Any]:
        y = self.net(x)
        return {"loss": y.square().mean(), "more": [y, y + 1]}


def a_result_that_nobody_reads(rank: int) -> Any:
    """Steps with and without DDP's search for parameters that a step does not use. Warnings are errors."""
    found = []
    for search in (False, True):
        model = Answering()
        twin = DistributedDataParallel(copy.deepcopy(model), find_unused_parameters=search)
        planned = DistributedDataParallel(
            rekindle.checkpoint(model, sample(), unused=["more"], **QUICK), find_unused_parameters=search
        )
        gradients, results = [], []
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            warnings.filterwarnings(
                "ignore", "find_unused_parameters=True was specified"
            )  # torch's, also of the plain one
            for net in (planned, twin):
                torch.manual_seed(rank)
                for _ in range(2):
                    out = net(sample() + rank)
                    out["loss"].backward()
                results.append(out)
                gradients.append([p.grad.clone() for p in net.parameters()])
        found.append(all(map(torch.equal, *gradients)) and results[0]["more"] is None)
    return found


def speaks(rank: int) -> Any:
    """These processes were spawned: no variable of the environment tells their rank."""
    return is_first_process()


SCENES = (another_shape_on_one_rank, gradients_arrive_one_after_the_other, a_result_that_nobody_reads, speaks)

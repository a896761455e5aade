"""The work of each of two processes under torchrun: Lightning's strategy ddp with a plan and without; writes down what it saw.

torchrun --nproc-per-node 2 lightning_ranks.py FOLDER
"""

from __future__ import annotations

import copy
import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

if __name__ == "__main__":
    folder, rank = Path(sys.argv[1]), os.environ["RANK"]
    os.environ["REKINDLE_CACHE"] = str(folder / f"cache{rank}")  # or the disk would make the plans equal
    torch.set_num_threads(1)

    from lightning.pytorch.strategies import ModelParallelStrategy
    from torch.distributed.fsdp import fully_shard

    from asked import searches
    from lightning_models import CallsNet, fitted, quick, same_weights, trainer
    from rekindle.integrations.lightning import PlanCallback
    from rekindle.model.formats import steps_to_json
    from steps_compared import plans

    two = {"strategy": "ddp", "devices": 2}
    torch.manual_seed(0)
    model = CallsNet()
    twin, again = copy.deepcopy(model), copy.deepcopy(model)
    with searches("storages") as asked:
        planned = fitted(model, trainer(folder, callback := quick(), **two))
    fitted(twin, trainer(folder / "plain", **two))
    with searches("storages") as asked_again:
        fitted(again, trainer(folder, second := quick(progress=None), **two))
    seen = {
        "same": same_weights(model, twin), "again": same_weights(again, twin), "world": torch.distributed.get_world_size(),
        "steps": steps_to_json(callback.plan.schedule), "searches": len(asked), "searches again": len(asked_again),
        "uses": sum(b.uses for b in model.net.forward.bounds), "plans": plans(model.net),
        "read": steps_to_json(second.plan.schedule),
    }  # fmt: skip

    class Sharded(CallsNet):
        """FSDP2, as Lightning does it: blocks are sharded in `configure_model`, after the callback has planned them."""

        def configure_model(self) -> None:
            mesh = self.device_mesh["data_parallel"]
            for module in (*self.net.blocks, self.net):
                fully_shard(module, mesh=mesh)

    def sharded() -> dict[str, Any]:
        strategy = ModelParallelStrategy(data_parallel_size=2, tensor_parallel_size=1)
        return {"strategy": strategy, "devices": 2, "enable_checkpointing": False}

    blocks = {
        "parts": "blocks.*",
        "module": "net",
        "minimize": "memory",
        "cost": "flops",
        "progress": False,
        "file": False,
    }
    torch.manual_seed(0)
    model = Sharded()
    twin = copy.deepcopy(model)
    fitted(model, trainer(folder, PlanCallback(**blocks), **sharded()))
    fitted(twin, trainer(folder, **sharded()))
    seen["sharded"] = all(
        torch.equal(p.full_tensor(), q.full_tensor())
        for p, q in zip(model.parameters(), twin.parameters(), strict=True)
    )
    seen["planned blocks"] = [sum(b.uses for b in m.forward.bounds) for m in model.net.blocks]
    (folder / f"{rank}.json").write_text(json.dumps(seen))
    dist.destroy_process_group()  # Lightning leaves it, and a process that ends with threads of gloo may abort

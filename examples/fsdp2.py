"""FSDP2: plan the blocks, then shard them with fully_shard.

Run: torchrun --nproc-per-node 2 examples/fsdp2.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import rekindle

torch.manual_seed(0)
mesh = dist.init_device_mesh("cpu", (2,))  # "cuda" on GPUs
model = nn.Sequential(nn.Linear(32, 64), *[nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(3)])
data = torch.randn(4, 8, 16, 32) + dist.get_rank()


def train(model):
    for module in (*model[1:], model):
        fully_shard(module, mesh=mesh)
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x in data:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor() for p in model.parameters()]


plain = copy.deepcopy(model)
rekindle.checkpoint(model, data[0], minimize="memory", parts=["1", "2", "3"], effort="quick")  # before fully_shard
same = all(map(torch.equal, train(model), train(plain)))
used = [rekindle.status(b).calls for b in model[1:]]
print(f"rank {dist.get_rank()}: weights equal the plain run's, bit for bit: {same}; steps by the plans: {used} of 4")
dist.destroy_process_group()

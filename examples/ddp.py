"""DistributedDataParallel: plan the module, then wrap it.

Run: torchrun --nproc-per-node 2 examples/ddp.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import rekindle

dist.init_process_group("gloo")  # "nccl" on GPUs
torch.manual_seed(0)
blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Dropout(0.1)) for _ in range(4)]
model = nn.Sequential(*blocks, nn.Linear(64, 10))
data = torch.randn(4, 32, 64) + dist.get_rank()  # each process has batches of its own


def train(model):
    torch.manual_seed(dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x in data:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


plain = DistributedDataParallel(copy.deepcopy(model))
rekindle.checkpoint(model, data[0], budget=0.7, effort="quick")  # the one line: before DDP, in every process
model = DistributedDataParallel(model)
same = all(map(torch.equal, train(model), train(plain)))
used = rekindle.status(model.module).calls
print(f"rank {dist.get_rank()}: weights equal the plain run's, bit for bit: {same}; steps by the plan: {used} of 4")
dist.destroy_process_group()

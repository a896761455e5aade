"""FSDP2 in the manner of torchtitan: each block compiled, in the way that the memory budget allows, and then sharded.

Run: torchrun --nproc-per-node 2 examples/compiled_fsdp2.py
"""

import copy

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import rekindle

torch.manual_seed(0)
mesh = dist.init_device_mesh("cpu", (2,))  # "cuda" on GPUs
layers = [nn.TransformerEncoderLayer(64, 4, 256, dropout=0.0, batch_first=True) for _ in range(4)]
model = nn.Sequential(nn.Linear(32, 64), *layers)
data = torch.randn(4, 8, 128, 32) + dist.get_rank()


def train(model):
    for module in (*model[1:], model):  # torchtitan's apply_fsdp
        fully_shard(module, mesh=mesh)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x in data:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.full_tensor() for p in model.parameters()]


plain = copy.deepcopy(model)
# In place of torchtitan's apply_ac and apply_compile:
rekindle.checkpoint(model, data[0], budget=0.5, parts=["1", "2", "3", "4"], compile=True, effort="quick")
same = all(torch.allclose(a, b, rtol=1e-4, atol=1e-6) for a, b in zip(train(model), train(plain), strict=True))
print(f"rank {dist.get_rank()}: weights equal the uncompiled run's, to rounding: {same}")
dist.destroy_process_group()

"""Accelerate: plan the model, then give it to prepare.

Run: accelerate launch --cpu examples/hf_accelerate.py      # or: python examples/hf_accelerate.py
"""

import copy

import torch
from accelerate import Accelerator
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import rekindle

accelerator = Accelerator(cpu=True, mixed_precision="bf16", gradient_accumulation_steps=2)
torch.manual_seed(0)
blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Dropout(0.1)) for _ in range(4)]
model = nn.Sequential(*blocks, nn.Linear(64, 10))
data = DataLoader(TensorDataset(torch.randn(128, 64), torch.randint(10, (128,))), batch_size=32)


def train(model):
    torch.manual_seed(1)
    prepared, optimizer, loader = accelerator.prepare(model, torch.optim.AdamW(model.parameters()), data)
    for x, y in loader:
        with accelerator.accumulate(prepared):
            accelerator.backward(nn.functional.cross_entropy(prepared(x), y))
            optimizer.step()
            optimizer.zero_grad()
    return list(model.parameters())


plain = copy.deepcopy(model)
with accelerator.autocast():  # the plan is for steps in bfloat16
    rekindle.checkpoint(model, next(iter(data))[0], budget=0.7, effort="quick")  # before prepare
same, used = all(map(torch.equal, train(model), train(plain))), rekindle.status(model).calls
print(f"weights equal the plain run's, bit for bit: {same}; steps by a plan: {used} of 4")

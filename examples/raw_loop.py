"""A loop of your own: plan where the model is ready, before the first step.

Run: python examples/raw_loop.py
"""

import copy

import torch
from torch import nn

import rekindle

torch.manual_seed(0)
blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Dropout(0.1)) for _ in range(4)]
model = nn.Sequential(*blocks, nn.Linear(64, 10))
data = [(torch.randn(32, 64), torch.randint(10, (32,))) for _ in range(4)]


def train(model):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x, y in data:
        loss = nn.functional.cross_entropy(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


plain = copy.deepcopy(model)
model = rekindle.checkpoint(model, data[0][0], budget=0.7, effort="quick")  # the one line
print(model.forward.plan.sentence)
same = all(map(torch.equal, train(model), train(plain)))
print(f"weights equal the plain run's, bit for bit: {same}; steps by the plan: {rekindle.status(model).calls} of 4")

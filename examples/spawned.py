"""Spawned processes and pickles: a planned module takes its plan along.

Run: python examples/spawned.py
"""

import copy

import torch
from torch import nn

import rekindle


def train(model, data):
    torch.manual_seed(1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for x in data:
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
    return [p.detach() for p in model.parameters()]


def work(rank, model, data, results):
    results[rank] = [p.numpy() for p in train(model, data)], rekindle.status(model).calls


if __name__ == "__main__":
    torch.manual_seed(0)
    blocks = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64), nn.Dropout(0.1)) for _ in range(4)]
    model, data = nn.Sequential(*blocks, nn.Linear(64, 10)), torch.randn(4, 32, 64)
    plain = copy.deepcopy(model)
    rekindle.checkpoint(model, data[0], budget=0.7, effort="quick")  # before the module is sent
    with torch.multiprocessing.get_context("spawn").Manager() as manager:
        results = manager.dict()
        torch.multiprocessing.spawn(work, (copy.deepcopy(model), data, results))
        found, used = results[0]
    same = all(torch.equal(torch.from_numpy(a), b) for a, b in zip(found, train(plain, data), strict=True))
    print(f"weights equal the plain run's, bit for bit: {same}; steps by the plan: {used} of 4")

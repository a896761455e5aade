"""torch.compile around planned blocks: plan first, then compile the model around them.

Run: python examples/compile_around.py
"""

import copy

import torch
from torch import nn

import rekindle


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        layers = (nn.TransformerEncoderLayer(64, 4, 256, batch_first=True) for _ in range(2))
        self.first, self.blocks, self.last = nn.Linear(32, 64), nn.Sequential(*layers), nn.Linear(64, 1)

    def forward(self, x):
        return self.last(self.blocks(self.first(x).relu())).square().mean()


def train(step, model):
    torch.manual_seed(1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    for x in data:
        step(x).backward()
        optimizer.step()
        optimizer.zero_grad()
    return list(model.parameters())


torch.manual_seed(0)
data, model = torch.randn(4, 8, 16, 32), Net()
plain = copy.deepcopy(model)
rekindle.checkpoint(model.blocks, torch.randn(8, 16, 64, requires_grad=True), minimize="memory", effort="quick")
compiled = torch.compile(model, backend="aot_eager")  # each planned module is one opaque call; "inductor" on GPUs
same, used = all(map(torch.equal, train(compiled, model), train(plain, plain))), rekindle.status(model.blocks).calls
print(f"weights equal the plain run's, bit for bit: {same}; steps by the plan: {used} of 4")

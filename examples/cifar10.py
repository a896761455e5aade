"""Trains a small ResNet on CIFAR-10 inside a memory budget.

    python examples/cifar10.py --data ~/data --budget 0.5      # the folder that holds cifar-10-batches-py
    python examples/cifar10.py                                 # no data at hand: synthetic images

Only the lines that name `rekindle` differ from a plain training loop.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import rekindle

MEAN, STD = (0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)


class Block(nn.Module):
    """A residual block: two 3x3 convolutions and a shortcut."""

    def __init__(self, c_in: int, c_out: int, stride: int):
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(c_in, c_out, 3, stride, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True),
            nn.Conv2d(c_out, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out),
        )  # fmt: skip
        self.around: nn.Module = nn.Identity()
        if stride != 1 or c_in != c_out:
            self.around = nn.Sequential(nn.Conv2d(c_in, c_out, 1, stride, bias=False), nn.BatchNorm2d(c_out))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + self.around(x))


def resnet(width: int = 16, blocks: int = 3) -> nn.Module:
    """He et al.'s ResNet-20 for CIFAR-10: three stages of `blocks` blocks."""
    layers: list[nn.Module] = [nn.Conv2d(3, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]
    c = width
    for stage in range(3):
        for i in range(blocks):
            c_out = width * 2**stage
            layers.append(Block(c, c_out, stride=2 if stage > 0 and i == 0 else 1))
            c = c_out
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(c, 10))


def cifar10(folder: Path) -> Dataset:
    """The training images on disk as pairs: a normalised float32 tensor [3, 32, 32] and its class."""
    import torchvision

    to_tensor = torchvision.transforms.Compose(
        [torchvision.transforms.ToTensor(), torchvision.transforms.Normalize(MEAN, STD)]
    )
    return torchvision.datasets.CIFAR10(folder, train=True, transform=to_tensor)


def synthetic(count: int) -> Dataset:
    """Made-up images in the format of `cifar10`: noise around one random picture per class."""
    generator = torch.Generator().manual_seed(0)
    classes = torch.randint(10, (count,), generator=generator)
    pictures = torch.randn(10, 3, 32, 32, generator=generator)
    return TensorDataset(pictures[classes] + 0.5 * torch.randn(count, 3, 32, 32, generator=generator), classes)


def batches(data: Dataset, size: int, steps: int) -> Iterator[tuple[Tensor, Tensor]]:
    """`steps` shuffled batches of one size; a smaller last batch would need a plan of its own."""
    loader = DataLoader(data, batch_size=size, shuffle=True, drop_last=True)
    while steps > 0:
        for images, classes in loader:
            yield images, classes
            steps -= 1
            if steps == 0:
                return


def main(argv: list[str] | None = None) -> list[float]:
    """Train by the plan. Returns the loss of each step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, help="folder that holds cifar-10-batches-py")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--budget", default="0.5", help="'2GiB', or a fraction of the plain activation peak: 0.5")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    args = parser.parse_args(argv)
    try:
        budget: str | float = float(args.budget)
    except ValueError:
        budget = args.budget

    torch.manual_seed(0)
    if args.data is not None and (args.data / "cifar-10-batches-py").is_dir():
        data = cifar10(args.data)
    else:
        print(f"{args.data or 'no folder given'}: no CIFAR-10 there, so synthetic images of its format are used")
        data = synthetic(4 * args.batch)

    model = resnet().to(args.device)
    sample = torch.zeros(args.batch, 3, 32, 32, device=args.device)
    # rekindle.checkpoint(model, sample, budget=budget) is these steps in one line; here the plan is printed in between
    plan = rekindle.plan(rekindle.trace(model, sample), budget=budget)
    print(plan.sentence)
    model = rekindle.apply(model, plan)

    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9, weight_decay=5e-4)
    losses = []
    for step, (images, classes) in enumerate(batches(data, args.batch, args.steps)):
        loss = F.cross_entropy(model(images.to(args.device)), classes.to(args.device))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        print(f"step {step:4d}  loss {losses[-1]:.4f}")
    return losses


if __name__ == "__main__":
    main()

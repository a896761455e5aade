"""Networks of searched cells on CIFAR-10: NASNet-A, AmoebaNet and DARTS.

20 cells and 36 channels by default. A cell reads the outputs of the two cells before it; its genotype lists which
operation reads which state. Channels double, and the image halves, at the two reduction cells. There is no auxiliary head
and no drop-path.

Zoph et al., Learning Transferable Architectures for Scalable Image Recognition, CVPR 2018.
Real et al., Regularized Evolution for Image Classifier Architecture Search, AAAI 2019.
Liu, Simonyan, Yang, DARTS: Differentiable Architecture Search, ICLR 2019.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import seeds
from .vision import image_sample

Edges = tuple[tuple[str, int], ...]


class Genotype(NamedTuple):
    """A normal and a reduction cell.

    normal, reduce : (operation, state it reads), two rows per new state. States 0 and 1 are the outputs of the two earlier
        cells.
    normal_concat, reduce_concat : the states whose concatenation is the cell's output.
    """

    normal: Edges
    normal_concat: tuple[int, ...]
    reduce: Edges
    reduce_concat: tuple[int, ...]


GENOTYPES = {
    "nasnet_cifar10": Genotype(
        normal=(
            ("sep_conv_5x5", 1), ("sep_conv_3x3", 0), ("sep_conv_5x5", 0), ("sep_conv_3x3", 0), ("avg_pool_3x3", 1),
            ("skip_connect", 0), ("avg_pool_3x3", 0), ("avg_pool_3x3", 0), ("sep_conv_3x3", 1), ("skip_connect", 1),
        ),
        normal_concat=(2, 3, 4, 5, 6),
        reduce=(
            ("sep_conv_5x5", 1), ("sep_conv_7x7", 0), ("max_pool_3x3", 1), ("sep_conv_7x7", 0), ("avg_pool_3x3", 1),
            ("sep_conv_5x5", 0), ("skip_connect", 3), ("avg_pool_3x3", 2), ("sep_conv_3x3", 2), ("max_pool_3x3", 1),
        ),
        reduce_concat=(4, 5, 6),
    ),
    "amoebanet_cifar10": Genotype(
        normal=(
            ("avg_pool_3x3", 0), ("max_pool_3x3", 1), ("sep_conv_3x3", 0), ("sep_conv_5x5", 2), ("sep_conv_3x3", 0),
            ("avg_pool_3x3", 3), ("sep_conv_3x3", 1), ("skip_connect", 1), ("skip_connect", 0), ("avg_pool_3x3", 1),
        ),
        normal_concat=(4, 5, 6),
        reduce=(
            ("avg_pool_3x3", 0), ("sep_conv_3x3", 1), ("max_pool_3x3", 0), ("sep_conv_7x7", 2), ("sep_conv_7x7", 0),
            ("avg_pool_3x3", 1), ("max_pool_3x3", 0), ("max_pool_3x3", 1), ("conv_7x1_1x7", 0), ("sep_conv_3x3", 5),
        ),
        reduce_concat=(3, 4, 6),
    ),
    "darts_cifar10": Genotype(
        normal=(
            ("sep_conv_3x3", 0), ("sep_conv_3x3", 1), ("sep_conv_3x3", 0), ("sep_conv_3x3", 1), ("sep_conv_3x3", 1),
            ("skip_connect", 0), ("skip_connect", 0), ("dil_conv_3x3", 2),
        ),
        normal_concat=(2, 3, 4, 5),
        reduce=(
            ("max_pool_3x3", 0), ("max_pool_3x3", 1), ("skip_connect", 2), ("max_pool_3x3", 1), ("max_pool_3x3", 0),
            ("skip_connect", 2), ("skip_connect", 2), ("max_pool_3x3", 1),
        ),
        reduce_concat=(2, 3, 4, 5),
    ),
}  # fmt: skip


class FactorizedReduce(nn.Module):
    """Halves the image with two 1x1 convolutions of stride 2, the second on the input shifted by one pixel."""

    def __init__(self, c_in: int, c_out: int):
        super().__init__()
        self.even = nn.Conv2d(c_in, c_out // 2, 1, stride=2, bias=False)
        self.odd = nn.Conv2d(c_in, c_out - c_out // 2, 1, stride=2, bias=False)
        self.norm = nn.BatchNorm2d(c_out)

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x)
        return self.norm(torch.cat([self.even(x), self.odd(x[:, :, 1:, 1:])], dim=1))


def _relu_conv_norm(c_in: int, c_out: int) -> nn.Module:
    return nn.Sequential(nn.ReLU(), nn.Conv2d(c_in, c_out, 1, bias=False), nn.BatchNorm2d(c_out))


def _depthwise(c: int, kernel: int, stride: int, dilation: int = 1) -> list[nn.Module]:
    """ReLU, depthwise convolution, pointwise convolution, batch norm."""
    return [
        nn.ReLU(),
        nn.Conv2d(c, c, kernel, stride, dilation * (kernel - 1) // 2, dilation, groups=c, bias=False),
        nn.Conv2d(c, c, 1, bias=False),
        nn.BatchNorm2d(c),
    ]


def _separable(kernel: int, c: int, stride: int) -> nn.Module:
    return nn.Sequential(*_depthwise(c, kernel, stride), *_depthwise(c, kernel, 1))


def _seven(c: int, stride: int) -> nn.Module:
    return nn.Sequential(
        nn.ReLU(),
        nn.Conv2d(c, c, (1, 7), stride=(1, stride), padding=(0, 3), bias=False),
        nn.Conv2d(c, c, (7, 1), stride=(stride, 1), padding=(3, 0), bias=False),
        nn.BatchNorm2d(c),
    )


# (channels, stride) -> module
OPERATIONS: dict[str, Callable[[int, int], nn.Module]] = {
    "sep_conv_3x3": partial(_separable, 3),
    "sep_conv_5x5": partial(_separable, 5),
    "sep_conv_7x7": partial(_separable, 7),
    "dil_conv_3x3": lambda c, stride: nn.Sequential(*_depthwise(c, 3, stride, dilation=2)),
    "avg_pool_3x3": lambda c, stride: nn.AvgPool2d(3, stride, padding=1, count_include_pad=False),
    "max_pool_3x3": lambda c, stride: nn.MaxPool2d(3, stride, padding=1),
    "skip_connect": lambda c, stride: nn.Identity() if stride == 1 else FactorizedReduce(c, c),
    "conv_7x1_1x7": _seven,
}


class Cell(nn.Module):
    """One cell: bring both inputs to c channels, make the states, concatenate the states that the genotype lists.

    c_older, c_newer : channels of the outputs of the two cells before.
    reduction : the cell halves the image.
    after_reduction : the older input is twice as large as the newer one, and is reduced first.
    """

    def __init__(self, genotype: Genotype, c_older: int, c_newer: int, c: int, reduction: bool, after_reduction: bool):
        super().__init__()
        edges, self.concat = (
            (genotype.reduce, genotype.reduce_concat) if reduction else (genotype.normal, genotype.normal_concat)
        )
        self.older = FactorizedReduce(c_older, c) if after_reduction else _relu_conv_norm(c_older, c)
        self.newer = _relu_conv_norm(c_newer, c)
        self.reads = [state for _, state in edges]
        self.edges = nn.ModuleList(OPERATIONS[op](c, 2 if reduction and state < 2 else 1) for op, state in edges)

    def forward(self, older: Tensor, newer: Tensor) -> Tensor:
        states = [self.older(older), self.newer(newer)]
        for i in range(0, len(self.reads), 2):
            a, b = (self.edges[k](states[self.reads[k]]) for k in (i, i + 1))
            states.append(a + b)
        return torch.cat([states[i] for i in self.concat], dim=1)


class CellNetwork(nn.Module):
    """Stem, cells, global average pool, linear: [batch, 3, height, width] -> [batch, classes]."""

    def __init__(self, genotype: Genotype, cells: int, channels: int, classes: int):
        super().__init__()
        stem = 3 * channels
        self.stem = nn.Sequential(nn.Conv2d(3, stem, 3, padding=1, bias=False), nn.BatchNorm2d(stem))
        self.cells = nn.ModuleList()
        c_older, c_newer, c, after_reduction = stem, stem, channels, False
        for i in range(cells):
            reduction = i in (cells // 3, 2 * cells // 3)
            c *= 2 if reduction else 1
            cell = Cell(genotype, c_older, c_newer, c, reduction, after_reduction)
            self.cells.append(cell)
            c_older, c_newer, after_reduction = c_newer, c * len(cell.concat), reduction
        self.head = nn.Linear(c_newer, classes)

    def forward(self, x: Tensor) -> Tensor:
        older = newer = self.stem(x)
        for cell in self.cells:
            older, newer = newer, cell(older, newer)
        return self.head(F.adaptive_avg_pool2d(newer, 1).flatten(1))


def _load(
    name: str, batch: int | None = None, *, image: int | None = None, input_grad: bool = True,
    cells: int = 20, channels: int = 36, classes: int = 10,
) -> tuple[nn.Module, Tensor]:  # fmt: skip
    row = seeds.row(name)
    model = CellNetwork(GENOTYPES[name], cells, channels, classes)
    return model, image_sample(batch or row.batch, image or row.image, input_grad)


MODELS = {name: partial(_load, name) for name in GENOTYPES}

"""Recurrent networks: a cell unrolled in a Python loop, a chain as long as the sequence, and one fused nn.LSTM.

Hochreiter, Schmidhuber, Long Short-Term Memory, Neural Computation 1997.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Cell(nn.Module):
    """One LSTM step written with linear layers: x [batch, features], h and c [batch, hidden] -> the next h and c."""

    def __init__(self, features: int, hidden: int):
        super().__init__()
        self.of_input = nn.Linear(features, 4 * hidden)
        self.of_state = nn.Linear(hidden, 4 * hidden, bias=False)

    def forward(self, x: Tensor, h: Tensor, c: Tensor) -> tuple[Tensor, Tensor]:
        take, forget, give, new = (self.of_input(x) + self.of_state(h)).chunk(4, dim=-1)
        c = forget.sigmoid() * c + take.sigmoid() * new.tanh()
        return give.sigmoid() * c.tanh(), c


class UnrolledLSTM(nn.Module):
    """[batch, length, features] -> [batch, classes], computed from the last state."""

    def __init__(self, features: int, hidden: int, classes: int):
        super().__init__()
        self.hidden = hidden
        self.cell = Cell(features, hidden)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(x.shape[0], self.hidden)
        for step in x.unbind(1):
            h, c = self.cell(step, h, c)
        return self.head(h)


class LSTM(nn.Module):
    """[batch, length, features] -> [batch, classes], with nn.LSTM."""

    def __init__(self, features: int, hidden: int, classes: int, layers: int, dropout: float):
        super().__init__()
        self.lstm = nn.LSTM(features, hidden, layers, batch_first=True, dropout=dropout)
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        # the first state is made from x, so that it is fake where x is
        zero = x.new_zeros(self.lstm.num_layers, x.shape[0], self.lstm.hidden_size)
        return self.head(self.lstm(x, (zero, zero))[0][:, -1])


def _unrolled(
    batch: int = 32, *, length: int = 64, features: int = 64, hidden: int = 128, classes: int = 10,
    input_grad: bool = False,
) -> tuple[nn.Module, Tensor]:  # fmt: skip
    return UnrolledLSTM(features, hidden, classes), torch.rand(batch, length, features, requires_grad=input_grad)


def _fused(
    batch: int = 32, *, length: int = 64, features: int = 64, hidden: int = 128, classes: int = 10, layers: int = 2,
    dropout: float = 0.0, input_grad: bool = False,
) -> tuple[nn.Module, Tensor]:  # fmt: skip
    model = LSTM(features, hidden, classes, layers, dropout)
    return model, torch.rand(batch, length, features, requires_grad=input_grad)


MODELS = {"lstm_unrolled": _unrolled, "lstm": _fused}

"""A deep LSTM unrolled step by step, where one step of all its layers is one op.

Written with the ops of a cell, 4 layers of 4,096 steps are some 600,000 ops forward and backward. One op per layer and
step, and a sum of gradients for each, makes 50,000. One op per step, with all weights in one tensor, makes 12,000: forward,
backward and one sum each. Plans lose nothing by it: where a step is saved or recomputed, all its layers are. But one op must
not take several steps, as nn.LSTM does: then no plan could cut between them.

Chen, Xu, Zhang, Guestrin, Training Deep Nets with Sublinear Memory Cost, 2016, arXiv:1604.06174: 4 layers, 1024 hidden,
batch 64, 50 features. Hochreiter, Schmidhuber, Long Short-Term Memory, Neural Computation 1997.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import register_flop_formula


def _layers(weight: Tensor, features: int, layers: int, hidden: int) -> list[Tensor]:
    """Views of the one weight: for each layer a matrix [inputs + hidden + 1, 4 * hidden], whose last row is the bias."""
    rows = [(features if i == 0 else hidden) + hidden + 1 for i in range(layers)]
    parts = weight.split([n * 4 * hidden for n in rows])
    return [w.view(n, 4 * hidden) for w, n in zip(parts, rows, strict=True)]


@torch.library.custom_op("rekindle::lstm_step", mutates_args=())
def lstm_step(x: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of a stack of LSTM layers.

    x : [batch, features].
    h, c : state of every layer, [layers, batch, hidden].
    weight : see `_layers`.

    Returns the next h and c, and the gates [layers, batch, 4 * hidden] after their non-linearities, in nn.LSTM's order:
    input, forget, cell, output.
    """
    next_h, next_c, gates = torch.empty_like(h), torch.empty_like(c), c.new_empty(*c.shape[:2], 4 * c.shape[2])
    for i, w in enumerate(_layers(weight, x.shape[1], len(h), h.shape[2])):
        inputs = torch.cat([x if i == 0 else next_h[i - 1], h[i]], 1)
        torch.addmm(w[-1], inputs, w[:-1], out=gates[i])
        take, forget, new, give = gates[i].chunk(4, 1)
        for gate in (take, forget, give):
            gate.sigmoid_()
        new.tanh_()
        torch.mul(forget, c[i], out=next_c[i]).addcmul_(take, new)
        torch.tanh(next_c[i], out=next_h[i]).mul_(give)
    return next_h, next_c, gates


@lstm_step.register_fake
def _(x: Tensor, h: Tensor, c: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(h), torch.empty_like(c), c.new_empty(*c.shape[:2], 4 * c.shape[2])


@torch.library.custom_op("rekindle::lstm_step_backward", mutates_args=())
def lstm_step_backward(
    grad_h: Tensor, grad_c: Tensor, x: Tensor, h: Tensor, c: Tensor, weight: Tensor, next_h: Tensor, next_c: Tensor,
    gates: Tensor, want_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients of x (empty unless `want_x`), h, c and weight, given the gradients of next_h and next_c. The other
    arguments are inputs and results of `lstm_step`."""
    to_x = torch.empty_like(x) if want_x else x.new_empty(0)
    to_h, to_c, to_weight = torch.empty_like(h), torch.empty_like(c), torch.empty_like(weight)
    features, layers, hidden = x.shape[1], len(h), h.shape[2]
    ws, to_ws = (_layers(w, features, layers, hidden) for w in (weight, to_weight))
    from_above = torch.zeros_like(h[0])  # the part of the gradient of this layer's next h that the layer above sends
    for i in reversed(range(layers)):
        take, forget, new, give = gates[i].chunk(4, 1)
        seen = next_c[i].tanh()
        dh = grad_h[i] + from_above
        dc = grad_c[i] + dh * give * (1 - seen * seen)
        torch.mul(dc, forget, out=to_c[i])
        dz = torch.cat(
            [
                dc * new * take * (1 - take),
                dc * c[i] * forget * (1 - forget),
                dc * take * (1 - new * new),
                dh * seen * give * (1 - give),
            ],
            1,
        )
        inputs = torch.cat([x if i == 0 else next_h[i - 1], h[i]], 1)
        torch.mm(inputs.t(), dz, out=to_ws[i][:-1])
        torch.sum(dz, 0, out=to_ws[i][-1])
        # written into a given tensor, as all products here, so that autocast does not touch them
        down = torch.mm(dz, ws[i][:-1].t(), out=dz.new_empty(len(dz), inputs.shape[1]))
        to_h[i] = down[:, -hidden:]
        from_above = down[:, :-hidden]
    if want_x:
        to_x.copy_(from_above)
    return to_x, to_h, to_c, to_weight


@lstm_step_backward.register_fake
def _(
    grad_h: Tensor, grad_c: Tensor, x: Tensor, h: Tensor, c: Tensor, weight: Tensor, next_h: Tensor, next_c: Tensor,
    gates: Tensor, want_x: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    to_x = torch.empty_like(x) if want_x else x.new_empty(0)
    return to_x, torch.empty_like(h), torch.empty_like(c), torch.empty_like(weight)


def _remember(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, ...]) -> None:
    ctx.save_for_backward(*inputs, *output)
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_h: Tensor | None, grad_c: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
    x, h, c, weight, next_h, next_c, gates = ctx.saved_tensors
    grad_h = torch.zeros_like(next_h) if grad_h is None else grad_h
    grad_c = torch.zeros_like(next_c) if grad_c is None else grad_c
    to_x, to_h, to_c, to_weight = lstm_step_backward(
        grad_h, grad_c, x, h, c, weight, next_h, next_c, gates, ctx.needs_input_grad[0]
    )
    return to_x if ctx.needs_input_grad[0] else None, to_h, to_c, to_weight


lstm_step.register_autograd(_backward, setup_context=_remember)


@register_flop_formula(torch.ops.rekindle.lstm_step)
def _flops(x: Any, h: Any, c: Any, weight: Any, out_shape: Any = None, **_: Any) -> int:
    """FLOPs of the matrix products alone, as PyTorch counts them; arguments are shapes. Each weight but the bias multiplies and
    adds once per row of the batch."""
    layers, batch, hidden = h
    return 2 * batch * (weight[0] - layers * 4 * hidden)


@register_flop_formula(torch.ops.rekindle.lstm_step_backward)
def _flops_backward(grad_h: Any, grad_c: Any, x: Any, h: Any, c: Any, weight: Any, *_: Any, **__: Any) -> int:
    return 2 * _flops(x, h, c, weight)


class SteppedLSTM(nn.Module):
    """[batch, length, features] -> [batch, classes], computed from the last state of the last layer."""

    def __init__(self, features: int, hidden: int, classes: int, layers: int):
        super().__init__()
        self.layers, self.hidden = layers, hidden
        size = sum((features if i == 0 else hidden) + hidden + 1 for i in range(layers)) * 4 * hidden
        self.weight = nn.Parameter(torch.empty(size).uniform_(-1 / math.sqrt(hidden), 1 / math.sqrt(hidden)))
        self.head = nn.Linear(hidden, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = c = x.new_zeros(self.layers, x.shape[0], self.hidden)
        for step in x.unbind(1):
            h, c, _ = lstm_step(step, h, c, self.weight)
        return self.head(h[-1])


def _load(
    batch: int = 64, *, length: int = 512, features: int = 50, hidden: int = 1024, classes: int = 10, layers: int = 4,
    input_grad: bool = False,
) -> tuple[nn.Module, Tensor]:  # fmt: skip
    model = SteppedLSTM(features, hidden, classes, layers)
    return model, torch.rand(batch, length, features, requires_grad=input_grad)


MODELS = {"lstm_deep": _load}

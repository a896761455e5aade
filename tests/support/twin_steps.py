"""Other kinds of steps than an ordinary one: without gradients, several calls, calls that fail, functions of torch.func."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from twin_changes import another
from twin_models import Sizes, inputs, loss_of
from twin_pair import Step


@another
def no_grad(s: Step, k: int) -> None:
    with torch.no_grad():
        s()


@another
def inference_mode(s: Step, k: int) -> None:
    with torch.inference_mode():
        s()


@another
def accumulate(s: Step, k: int) -> None:
    for _ in range(2):
        loss_of(s()).backward()


@another
def two_calls_one_backward(s: Step, k: int) -> None:
    s.model.zero_grad()
    (loss_of(s()) + loss_of(s())).backward()


@another
def draw_before_backward(s: Step, k: int) -> None:
    s.model.zero_grad()
    loss = loss_of(s())
    s.keep("drawn", torch.rand(k + 1))
    (loss * (1 + torch.rand(()))).backward()


@another
def backward_twice(s: Step, k: int) -> None:
    loss = loss_of(s())
    loss.backward(retain_graph=True)
    loss.backward()


@another
def gradients_of_some(s: Step, k: int) -> None:
    train = [q for q in s.model.parameters() if q.requires_grad]
    some = train[k % len(train) :: 2]
    s.keep("autograd.grad", torch.autograd.grad(loss_of(s()), some, allow_unused=True))


@another
def dropped_result(s: Step, k: int) -> None:
    s()
    s.train()


@another
def fails_in_a_hook(s: Step, k: int) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("on purpose")

    handle = s.model.get_submodule(s.pair.submodule(k) or "").register_forward_hook(fail)
    try:
        s.train()
    finally:
        handle.remove()


@another
def bad_shape(s: Step, k: int) -> None:
    loss_of(s(last=12)).backward()


@another
def bad_dtype(s: Step, k: int) -> None:
    loss_of(s(dtype=torch.float64 if s.pair.dtype == torch.float32 else torch.float32)).backward()


@another
def call_of_submodule(s: Step, k: int) -> None:
    name = s.pair.submodule(k, nn.Linear)
    if name is not None:
        x = torch.rand(4, s.model.get_submodule(name).in_features, dtype=s.pair.dtype)
        out = s.model.get_submodule(name)(x)
        s.keep("a submodule's result", out)
        out.sum().backward() if out.requires_grad else None


@another
def functional(s: Step, k: int) -> None:
    made = {n: (q.detach() * 1.125).requires_grad_() for n, q in s.model.named_parameters()}
    loss = loss_of(s(lambda *a, **kw: functional_call(s.model, made, a, kw)))
    loss.backward()
    s.keep("gradients of the parameters given", {n: q.grad for n, q in made.items()})


@another
def function_transform(s: Step, k: int) -> None:
    params = {n: q.detach() for n, q in s.model.named_parameters()}
    leaves, given = inputs(s.model, Sizes(), s.pair.dtype, s.pair.steps)

    def f(ps: dict[str, Tensor]) -> Tensor:
        return loss_of(functional_call(s.model, ps, (), given))

    s.keep("torch.func.grad", torch.func.grad(f)(params))


@another
def closed_over_loop(s: Step, k: int) -> None:
    """An ordinary loop of three steps with an optimizer."""
    optimizer = torch.optim.SGD(s.model.parameters(), lr=0.01, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=k % 2 == 0)
        loss_of(s()).backward()
        optimizer.step()

"""What people do to a model between steps: changes of modules, attributes, hooks, arguments, modes and plans."""

from __future__ import annotations

import copy
import types
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import rekindle
import twin_models
from twin_models import Activation, scaled
from twin_pair import GOALS, Pair, Step, plan_it

ACTIONS: dict[str, Callable[[Pair, int], Any]] = {}


def change(do: Callable[[Pair, int], Any]) -> Callable[[Pair, int], Any]:
    """What one does between steps."""
    ACTIONS[do.__name__] = do
    return do


def another(run: Callable[[Step, int], None]) -> Callable[[Step, int], None]:
    """Another kind of step."""
    ACTIONS[run.__name__] = lambda pair, k: pair.step(lambda s: run(s, k), only_numbers=True)
    return run


@change
def no_change(p: Pair, k: int) -> None:
    pass


@change
def mode(p: Pair, k: int) -> None:
    p.each(lambda m: m.train(k % 2 == 0))


@change
def submodule_mode(p: Pair, k: int) -> None:
    name = p.submodule(k)
    p.each(lambda m: m.get_submodule(name).train(not m.get_submodule(name).training))


@change
def batch(p: Pair, k: int) -> None:
    p.sizes.batch = 2 + k % 4


@change
def length(p: Pair, k: int) -> None:
    p.sizes.length = 3 + k % 4


@change
def strides(p: Pair, k: int) -> None:
    p.sizes.strided = not p.sizes.strided


@change
def input_gradients(p: Pair, k: int) -> None:
    p.sizes.requires_grad = not p.sizes.requires_grad


@change
def mask(p: Pair, k: int) -> None:
    p.sizes.masked = not p.sizes.masked


@change
def argument_style(p: Pair, k: int) -> None:
    p.sizes.style = k % 4
    p.step()


@change
def float_argument(p: Pair, k: int) -> None:
    p.sizes.vary = not p.sizes.vary
    p.step()
    p.step()


@change
def autocast(p: Pair, k: int) -> None:
    p.sizes.autocast = not p.sizes.autocast


@change
def zero_grad_style(p: Pair, k: int) -> None:
    p.sizes.set_to_none = not p.sizes.set_to_none


@change
def dropout_p(p: Pair, k: int) -> None:
    name = p.submodule(k, (nn.Dropout, nn.Dropout2d))
    p.each(lambda m: name and setattr(m.get_submodule(name), "p", [0.0, 0.3, 0.6, 0.2][k % 4]))


@change
def set_scale(p: Pair, k: int) -> None:
    p.each(lambda m: hasattr(m, "scale") and setattr(m, "scale", [0.25, 0.5, 0.75, 1][k % 4]))


@change
def set_rate(p: Pair, k: int) -> None:
    def do(m: nn.Module) -> None:
        if hasattr(m, "rates"):
            m.rates[k % len(m.rates)] = [0.0, 0.5, 0.1, 0.7][k % 4]

    p.each(do)


@change
def set_config(p: Pair, k: int) -> None:
    what, value = [("gain", 0.5), ("residual", False), ("note", "changed"), ("gain", 1.0), ("residual", True)][k % 5]
    p.each(lambda m: hasattr(m, "config") and setattr(m.config, what, value))


@change
def swap_activation(p: Pair, k: int) -> None:
    name = p.submodule(k, Activation)
    p.each(lambda m: name and setattr(m.get_submodule(name), "function", [torch.tanh, F.relu, F.gelu, F.silu][k % 4]))


@change
def set_global(p: Pair, k: int) -> None:
    twin_models.SCALE = [1.0, 2.0, 0.5][k % 3]


@change
def replace_submodule(p: Pair, k: int) -> None:
    name = p.submodule(k, (nn.Linear, Activation, nn.Dropout))
    old = p.both[0].get_submodule(name or "")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(k)
        if isinstance(old, nn.Linear):
            new: nn.Module = nn.Linear(old.in_features, old.out_features, dtype=old.weight.dtype)
            new = nn.Sequential(new, nn.Tanh()) if k % 3 == 0 else new
        else:
            new = nn.Dropout(0.4) if isinstance(old, nn.Dropout) else nn.LeakyReLU()
    p.put(name or "", new.train(old.training))


class Lora(nn.Module):
    """A Linear with an adapter beside it, written by hand."""

    def __init__(self, base: nn.Linear, k: int):
        super().__init__()
        self.base, g = base.requires_grad_(False), torch.Generator().manual_seed(k)
        like = {"dtype": base.weight.dtype, "generator": g}
        self.down = nn.Parameter(torch.randn(2, base.in_features, **like))
        self.up = nn.Parameter(torch.randn(base.out_features, 2, **like))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


@change
def lora(p: Pair, k: int) -> None:
    name = p.submodule(k, nn.Linear)
    if name is None or name.endswith("base"):
        return
    path, _, leaf = name.rpartition(".")
    for m in p.both:
        setattr(m.get_submodule(path), leaf, Lora(m.get_submodule(name), k).train(m.training))


@change
def pre_hook(p: Pair, k: int) -> None:
    name = p.submodule(k, (nn.Linear, nn.Dropout, Activation, nn.Conv2d))
    p.handles.append(
        p.each(lambda m: m.get_submodule(name).register_forward_pre_hook(lambda _, args: (args[0] * 1.5,)))
    )


@change
def forward_hook(p: Pair, k: int) -> None:
    name = p.submodule(k)
    p.handles.append(
        p.each(lambda m: m.get_submodule(name).register_forward_hook(lambda _, args, out: scaled(out, 0.75)))
    )


@change
def forward_hook_with_effect(p: Pair, k: int) -> None:
    name = p.submodule(k)

    def hook(held: list[Any]) -> Any:
        return lambda _, args, out: held.append(tuple(out.shape))

    p.words_before = p.words
    p.handles.append(
        [m.get_submodule(name).register_forward_hook(hook(e)) for m, e in zip(p.both, p.effects, strict=True)]
    )
    p.step()


@change
def backward_hook(p: Pair, k: int) -> None:
    name = p.submodule(k, (nn.Linear, nn.Conv2d, nn.LayerNorm))

    def hook(_: Any, given: Any, out: Any) -> Any:
        return tuple(None if g is None else g * 0.5 for g in given)

    p.handles.append(p.each(lambda m: m.get_submodule(name).register_full_backward_hook(hook)))


@change
def hook_on_itself(p: Pair, k: int) -> None:
    add = [
        lambda m: m.register_forward_hook(lambda _, args, out: scaled(out, 0.5)),
        lambda m: m.register_forward_pre_hook(lambda _, args, kwargs: (args, kwargs), with_kwargs=True),
        lambda m: m.register_full_backward_pre_hook(lambda _, g: scaled(g, 2.0)),
    ][k % 3]
    p.handles.append(p.each(add))


@change
def remove_hook(p: Pair, k: int) -> None:
    if p.handles:
        for h in p.handles.pop(k % len(p.handles)):
            h.remove()


@change
def parameter_hook(p: Pair, k: int) -> None:
    n = k % len(list(p.both[0].parameters()))
    p.handles.append(
        p.each(
            lambda m: (
                list(m.parameters())[n].register_hook(lambda g: g * 0.5)
                if list(m.parameters())[n].requires_grad
                else torch.zeros(1, requires_grad=True).register_hook(lambda g: g)
            )
        )
    )


def _patched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return scaled(type(self).forward(self, *args, **kwargs), 1.5)


@change
def patch_submodule(p: Pair, k: int) -> None:
    name = p.submodule(k)
    p.each(lambda m: setattr(m.get_submodule(name), "forward", types.MethodType(_patched, m.get_submodule(name))))


@change
def unpatch_submodules(p: Pair, k: int) -> None:
    for m in p.both:
        for s in list(m.modules())[1:]:
            s.__dict__.pop("forward", None)


@change
def patch_class(p: Pair, k: int) -> None:
    kinds = sorted({type(m) for m in p.both[0].modules()} - {nn.ModuleList, nn.Sequential}, key=lambda t: t.__name__)
    kind = kinds[k % len(kinds)]
    old: Any = kind.forward
    p.classes.append((kind, old))
    kind.forward = lambda self, *args, **kwargs: scaled(old(self, *args, **kwargs), 1.25)  # type: ignore[attr-defined]


@change
def unpatch_classes(p: Pair, k: int) -> None:
    while p.classes:
        kind, old = p.classes.pop()
        kind.forward = old  # type: ignore[attr-defined]


class Wrapped:
    """A forward around another, as libraries put it there."""

    def __init__(self, inner: Any):
        self.inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return scaled(self.inner(*args, **kwargs), 1.5)


@change
def wrap_forward(p: Pair, k: int) -> None:
    _unwrap(p)
    p.each(lambda m: setattr(m, "forward", Wrapped(m.forward)))


@change
def unwrap_forward(p: Pair, k: int) -> None:
    _unwrap(p)


def _unwrap(p: Pair) -> None:
    for m in p.both:
        wrapped = m.__dict__.get("forward")
        if isinstance(wrapped, Wrapped):
            del m.__dict__["forward"]
            if not isinstance(wrapped.inner, types.MethodType):
                m.__dict__["forward"] = wrapped.inner


@change
def freeze(p: Pair, k: int) -> None:
    """One parameter frozen, or trained again; never the last one that trains."""
    n = k % len(list(p.both[0].parameters()))

    def do(m: nn.Module) -> None:
        q = list(m.parameters())[n]
        if not q.requires_grad or sum(t.requires_grad for t in m.parameters()) > 2:
            q.requires_grad_(not q.requires_grad)

    p.each(do)


@change
def deepcopy(p: Pair, k: int) -> None:
    p.both = p.each(copy.deepcopy)


@change
def state_dict(p: Pair, k: int) -> None:
    g = torch.Generator().manual_seed(k)
    state = {
        key: v + 0.01 * torch.randn(v.shape, generator=g, dtype=v.dtype) if v.is_floating_point() else v.clone()
        for key, v in p.both[0].state_dict().items()
    }
    p.each(lambda m: m.load_state_dict(copy.deepcopy(state)))


@change
def other_dtype(p: Pair, k: int) -> None:
    kind = torch.float32 if p.dtype == torch.float64 else torch.float64
    p.each(lambda m: m.to(kind))


@change
def optimizer_step(p: Pair, k: int) -> None:
    def do(m: nn.Module) -> None:
        optimizer = torch.optim.SGD(m.parameters(), lr=0.01)
        optimizer.step()
        optimizer.zero_grad(set_to_none=k % 2 == 0)

    p.each(do)


@change
def restore_and_apply(p: Pair, k: int) -> None:
    _unwrap(p)
    plan = getattr(p.both[1].forward, "plan", None)
    rekindle.restore(p.both[1])
    p.watch_plan = False
    p.step()
    if plan is not None:
        try:
            rekindle.apply(p.both[1], plan)
            p.watch_plan = True
        except rekindle.PlanMismatch:
            checkpoint_again(p, k)


@change
def checkpoint_again(p: Pair, k: int) -> None:
    _unwrap(p)
    p.goal = GOALS[k % len(GOALS)]
    p.watch_plan = plan_it(p)

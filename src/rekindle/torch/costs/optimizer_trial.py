"""Optimizers by name, and the size of one's state as a function of its parameter's shape, learned by running the optimizer.

The class takes two real steps on tiny parameters whose sizes are distinct primes, so the size of each state tensor shows which
dimensions of the parameter it has. Scaled to the real shape this gives the state to the byte.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...errors import UsageError
from ..private import optimizer_hooks, unset_fake_temporarily

Options = dict[str, Any]


class _Lion(Optimizer):
    """Holds the state of Lion (arXiv:2302.06675), one moving average; torch has no class for it."""

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("exp_avg", torch.zeros_like(p))


def optimizers_by_name() -> dict[str, tuple[type, Options]]:
    """(class, options that differ from its defaults) by name."""
    names: dict[str, tuple[type, Options]] = {
        k.lower(): (cls, {}) for k, cls in vars(torch.optim).items()
        if isinstance(cls, type) and issubclass(cls, Optimizer) and cls not in (Optimizer, torch.optim.SparseAdam)
    }  # fmt: skip
    return names | {"lion": (_Lion, {}), "sgd-momentum": (torch.optim.SGD, {"momentum": 0.9})}


def names() -> list[str]:
    """The names of optimizers that `optimizers.state_bytes` accepts."""
    return sorted(optimizers_by_name())


_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
_PLACES = {"fused": None, "foreach": None, "capturable": False}  # options that only choose how and where a step runs
Learned = list[tuple[int, tuple[int, ...]]]  # bytes, and the parameter dimensions by whose sizes they are multiplied
_learned: dict[Any, Learned] = {}


def bytes_by_shape(
    cls: type, options: Options, ndim: int, dtype: torch.dtype, defaults: Options
) -> Callable[[tuple[int, ...]], int]:
    """A function from the shape of a parameter to the bytes of its state, for one class, options, rank and dtype."""
    key = (cls, ndim, dtype, torch.get_default_dtype(), repr(sorted((options | {"": defaults}).items(), key=str)))
    if key not in _learned:
        if 2 * ndim > len(_PRIMES):
            raise UsageError(
                f"the state of an optimizer for a parameter of {ndim} dimensions cannot be computed beforehand"
            )
        small, large = _PRIMES[:ndim], _PRIMES[ndim : 2 * ndim]
        one, two = (_tried(cls, options, shape, dtype, defaults) for shape in (small, large))
        found = [_rule(a, b, small, large) for a, b in zip(one, two, strict=False)]
        if len(one) != len(two) or None in found:
            raise UsageError(
                f"the sizes of the state that {cls.__name__} keeps do not follow from its parameters' sizes, so they cannot "
                "be computed beforehand; trace after its first step, or name an optimizer that keeps as much"
            )
        _learned[key] = [rule for rule in found if rule is not None]
    return partial(_scaled, _learned[key])


def _rule(
    one: torch.Tensor, two: torch.Tensor, small: tuple[int, ...], large: tuple[int, ...]
) -> tuple[int, tuple[int, ...]] | None:
    """(bytes, parameter dimensions whose sizes multiply them) of a state tensor, from a small and a large parameter.

    None if its size does not follow from the parameter's.
    """
    rest = two.numel()
    dims: list[int] = []
    for i, prime in enumerate(large if rest != one.numel() else ()):
        while rest and rest % prime == 0:
            rest //= prime
            dims.append(i)
    fits = one.numel() == rest * math.prod(small[i] for i in dims) and one.dtype == two.dtype
    return (rest * two.element_size(), tuple(dims)) if fits else None


def _scaled(rules: Learned, shape: tuple[int, ...]) -> int:
    return sum(size * math.prod(shape[i] for i in dims) for size, dims in rules)


def _tried(
    cls: type, options: Options, shape: tuple[int, ...], dtype: torch.dtype, defaults: Options
) -> list[torch.Tensor]:
    """All state tensors after two steps on one parameter of this shape."""
    problem: Exception | None = None
    for places in ({}, _PLACES):  # a fused or capturable step may not exist on the CPU
        at_hand = {k: x for k, x in places.items() if k in options}
        with _alone():
            try:
                p = nn.Parameter(torch.ones(shape, dtype=dtype))
                p.grad = torch.ones(shape, dtype=dtype)
                group = {k: _copied(x) for k, x in (options | at_hand).items()}
                asked = inspect.signature(cls).parameters
                chosen = {k: _copied(x) for k, x in (defaults | at_hand).items() if k in asked}
                made: Any = cls([{"params": [p], **group}], **chosen)
                for _ in range(2):
                    made.step()
                return list(tensors_of_state(made.state.values()))
            except Exception as e:
                problem = problem or e
    raise UsageError(
        f"the state of {cls.__name__} cannot be computed beforehand: a trial on a {dtype} parameter of {len(shape)} dimensions "
        f"failed with {type(problem).__name__}: {problem}. Trace after the optimizer's first step, or name an optimizer that "
        f"keeps as much: {', '.join(names())}"
    ) from problem


@contextlib.contextmanager
def without_hooks() -> Iterator[None]:
    """Optimizers step inside without the hooks that the process has on all optimizers."""
    hooks = optimizer_hooks()
    kept = [dict(h) for h in hooks]
    for h in hooks:
        h.clear()
    try:
        yield
    finally:
        for h, content in zip(hooks, kept, strict=True):
            h.update(content)


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Run real tensors on the CPU inside, without modes and global optimizer hooks, and keep the random state."""
    with (
        without_hooks(),
        unset_fake_temporarily(),
        torch.device("cpu"),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.random.fork_rng(devices=[]),
    ):
        yield


def _copied(x: Any) -> Any:
    """A copy of an option, on the CPU: a step may write to a learning rate that is a tensor."""
    return x.detach().to("cpu", copy=True) if isinstance(x, torch.Tensor) else copy.deepcopy(x)


def tensors_of_state(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for x in tree.values():
            yield from tensors_of_state(x)
    elif isinstance(tree, Iterable) and not isinstance(tree, str | bytes):
        for x in tree:
            yield from tensors_of_state(x)

"""Optimizers by name, and the size of one's state as a function of its parameter's shape, learned by running the optimizer.

The class takes two real steps on tiny parameters whose sizes are distinct primes, so the size of each state tensor shows which
dimensions of the parameter it has. Scaled to the real shape this gives the state to the byte.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
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
_GROUPS_TRIED = 4
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
        with _alone():
            try:
                p = nn.Parameter(torch.ones(shape, dtype=dtype))
                p.grad = torch.ones(shape, dtype=dtype)
                made = _made(cls, [([p], options)], defaults, places)
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


def _made(cls: type, groups: Sequence[tuple[list[nn.Parameter], Options]], defaults: Options, places: Options) -> Any:
    """An optimizer of the class on these groups. places : options that take the place of those that are given."""

    def copied(options: Options) -> Options:
        return {k: _copied(places.get(k, x)) for k, x in options.items()}

    asked = inspect.signature(cls).parameters
    chosen = copied({k: x for k, x in defaults.items() if k in asked})
    return cls([{"params": params, **copied(options)} for params, options in groups], **chosen)


def steps_each_alone(optimizer: Optimizer) -> bool:
    """Whether the optimizer gives the same bits if it steps its parameters one after another, the others without gradients.

    Two optimizers of its class and first groups are tried on tiny parameters. One that counts its steps for all parameters
    together, or looks at the norm of all gradients, does not.
    """
    params = [p for g in optimizer.param_groups for p in g["params"]]
    shapes = {p.ndim: _PRIMES[: p.ndim] for p in params}
    for places in ({}, _PLACES):
        with _alone(), contextlib.suppress(Exception):
            whole, apart = (_trial_steps(optimizer, shapes, places, alone) for alone in (False, True))
            return all(map(torch.equal, whole, apart))
    return False


def _trial_steps(
    optimizer: Optimizer, shapes: dict[int, tuple[int, ...]], places: Options, alone: bool
) -> list[torch.Tensor]:
    """Tiny parameters after three steps. alone : each is stepped by itself."""
    torch.manual_seed(0)
    groups: list[tuple[list[nn.Parameter], Options]] = []
    for group in optimizer.param_groups[:_GROUPS_TRIED]:
        some = [*group["params"][:2], *group["params"][-1:]]
        tiny = [nn.Parameter(torch.rand(shapes[p.ndim], dtype=p.dtype)) for p in some]
        groups.append((tiny, {k: x for k, x in group.items() if k not in ("params", "param_names")}))
    made = _made(type(optimizer), groups, optimizer.defaults, places)
    params = [p for tiny, _ in groups for p in tiny]
    for _ in range(3):
        grads = [torch.rand_like(p) - 0.5 for p in params]
        random = torch.get_rng_state()
        for first in range(len(params) if alone else 1):
            for i, p in enumerate(params):
                p.grad = grads[i] if i == first or not alone else None
            made.step()
        torch.set_rng_state(random)
    return [p.detach() for p in params]


@contextlib.contextmanager
def without_hooks(optimizer: Optimizer | None = None) -> Iterator[None]:
    """Optimizers step inside without the hooks that the process has on all optimizers, and this one without its own."""
    hooks = optimizer_hooks(optimizer)
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

"""Bytes of the state that an optimizer will hold, known before its first step has made it.

No table says what an optimizer keeps: its class takes two real steps on tiny parameters whose sizes are distinct primes, so
that the shape of each state tensor tells which sizes of the parameter it has. Scaled to the real sizes that is the state to
the byte.
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
from torch._subclasses.fake_tensor import unset_fake_temporarily
from torch.optim import Optimizer

from ...arguments import close
from ...errors import UsageError
from ...sizes import format_bytes
from .memory import storage_of

Options = dict[str, Any]
Given = Optimizer | type | str
_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29)
_PLACES = {"fused": None, "foreach": None, "capturable": False}  # options that only say how and where a step runs


class _Lion(Optimizer):
    """Keeps the state of Lion (arXiv:2302.06675), one moving average. torch has no such class."""

    def __init__(self, params: Any, lr: float = 1e-4) -> None:
        super().__init__(params, {"lr": lr})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                self.state[p].setdefault("exp_avg", torch.zeros_like(p))


def _named() -> dict[str, tuple[type, Options]]:
    names: dict[str, tuple[type, Options]] = {
        k.lower(): (cls, {}) for k, cls in vars(torch.optim).items()
        if isinstance(cls, type) and issubclass(cls, Optimizer) and cls not in (Optimizer, torch.optim.SparseAdam)
    }  # fmt: skip
    return names | {"lion": (_Lion, {}), "sgd-momentum": (torch.optim.SGD, {"momentum": 0.9})}


def names() -> list[str]:
    """The names of optimizers that `state_bytes` knows."""
    return sorted(_named())


def state_bytes(optimizer: Given, model: nn.Module) -> int:
    """Bytes of the state that the optimizer holds once it has stepped; what it holds already counts where that is more.

    Parameters
    ----------
    optimizer : a torch optimizer, whose own parameters and options count; a class of optimizers, with its default options,
        or a name such as "adamw" or "sgd-momentum", for all parameters of `model` that require grad. "muon": Muon for
        matrices and AdamW for the rest. L-BFGS counts with its history full.

    Nothing of the optimizer, the model or the random state is touched.

    Raises
    ------
    UsageError : it is no optimizer, class or name; the name is unknown; or the class fails on small parameters.
    """
    check(optimizer)
    if (inner := _innermost(optimizer)) is not None:
        return _of_instance(inner)
    params = [p for p in model.parameters() if p.requires_grad]
    if isinstance(optimizer, str):
        key = optimizer.strip().lower()
        cls, options = _named()[key]
        if key == "muon":
            apart = [[p for p in params if (p.ndim == 2) == two] for two in (True, False)]
            return _coming(cls, {}, apart[0]) + _coming(torch.optim.AdamW, {}, apart[1])
        return _coming(cls, options, params)
    return _coming(optimizer, {}, params)  # type: ignore[arg-type]


def check(given: Any) -> None:
    """Check that it is an optimizer, its class or a known name.

    Raises
    ------
    UsageError : it is something else.
    """
    if isinstance(given, str):
        if given.strip().lower() not in _named():
            raise UsageError(
                f"optimizer={given!r} is unknown; {close(given.strip().lower(), names())}the names are {', '.join(names())}. "
                "Give one of them, a class of optimizers or an optimizer"
            )
    elif _innermost(given) is None and not (isinstance(given, type) and issubclass(given, Optimizer)):
        raise UsageError(
            f"optimizer={given!r:.80} is none; give a torch.optim.Optimizer (of a wrapper, the one inside), its class, or "
            f"one of the names {', '.join(names())}"
        )


def _innermost(given: Any) -> Optimizer | None:
    """The optimizer itself, or the one in a wrapper that calls it `optimizer`, as Accelerate's does."""
    seen: list[Any] = []
    while not isinstance(given, type | str) and given is not None and all(given is not x for x in seen):
        seen.append(given)
        given = getattr(given, "optimizer", None)
    return next((x for x in reversed(seen) if isinstance(x, Optimizer)), None)


def not_counted(model: nn.Module) -> str:
    """A text that says what a budget in bytes leaves out where no optimizer was named: "optimizer state (AdamW would add
    9.2 GiB)". "" where nothing trains."""
    trained = {id(p): p for p in model.parameters() if p.requires_grad}.values()
    # two moments for each element, and a step; asking `state_bytes` would load torch's optimizers, which takes seconds
    size = sum(2 * p.numel() * p.element_size() + torch.float32.itemsize for p in trained)
    return f"optimizer state (AdamW would add {format_bytes(size)})" if size else ""


def _of_instance(optimizer: Optimizer) -> int:
    total = 0
    grouped: set[int] = set()
    for group in optimizer.param_groups:
        options = {k: x for k, x in group.items() if k != "params"}
        params = list({id(p): p for p in group["params"]}.values())  # one that stands there twice steps once
        grouped |= set(map(id, params))
        if isinstance(optimizer, torch.optim.LBFGS):  # one state for all parameters
            return max(_tensor_bytes(optimizer.state.values()), _lbfgs(params, options))
        for p in params:
            have = _tensor_bytes([optimizer.state[p]]) if p in optimizer.state else 0
            come = _coming(type(optimizer), options, [p], optimizer.defaults) if p.requires_grad else 0
            total += max(have, come)
    return total + _tensor_bytes([s for p, s in optimizer.state.items() if id(p) not in grouped])


def _coming(cls: type, options: Options, params: Iterable[nn.Parameter], defaults: Options | None = None) -> int:
    """Bytes of the state that the class makes for these parameters."""
    params = list(params)
    if not params:
        return 0
    if issubclass(cls, torch.optim.LBFGS):
        return _lbfgs(params, {"history_size": 100} | options)
    total = 0
    known: dict[Any, Callable[[tuple[int, ...]], int]] = {}
    for p in params:
        local = getattr(p, "_local_tensor", p)  # of a DTensor the part that lies on this device
        key = (local.ndim, local.dtype)
        if key not in known:
            known[key] = _learn(cls, options, *key, defaults or {})
        total += known[key](tuple(local.shape))
    return total


def _lbfgs(params: list[nn.Parameter], options: Options) -> int:
    """Bytes of the state of L-BFGS with its history full: two vectors and two scalars for each of its steps, a direction and
    a gradient."""
    history = int(options["history_size"])
    size = max(p.element_size() for p in params)
    return (2 * history + 2) * sum(p.numel() for p in params) * size + (2 * history + 2) * size


Learned = list[tuple[int, tuple[int, ...]]]  # bytes, and the dimensions of the parameter whose sizes they are times
_learned: dict[Any, Learned] = {}


def _learn(
    cls: type, options: Options, ndim: int, dtype: torch.dtype, defaults: Options
) -> Callable[[tuple[int, ...]], int]:
    """A function from the shape of a parameter to the bytes of its state."""
    key = (cls, ndim, dtype, torch.get_default_dtype(), repr(sorted((options | {"": defaults}).items(), key=str)))
    if key not in _learned:
        if 2 * ndim > len(_PRIMES):
            raise UsageError(f"the state of an optimizer for a parameter of {ndim} dimensions is not known beforehand")
        small, large = _PRIMES[:ndim], _PRIMES[ndim : 2 * ndim]
        one, two = (_tried(cls, options, shape, dtype, defaults) for shape in (small, large))
        found = [_rule(a, b, small, large) for a, b in zip(one, two, strict=False)]
        if len(one) != len(two) or None in found:
            raise UsageError(
                f"the sizes of the state that {cls.__name__} keeps do not follow from those of its parameters, so it is not "
                "known beforehand; trace after its first step, or name an optimizer that keeps as much"
            )
        _learned[key] = [rule for rule in found if rule is not None]
    return partial(_scaled, _learned[key])


def _rule(
    one: torch.Tensor, two: torch.Tensor, small: tuple[int, ...], large: tuple[int, ...]
) -> tuple[int, tuple[int, ...]] | None:
    """(bytes, dimensions of the parameter whose sizes multiply them) of a state tensor, from its sizes for a small and a large
    parameter; None where its size does not follow from the parameter's."""
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
    """Every state tensor after two steps on one parameter of that shape."""
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
                return list(_tensors(made.state.values()))
            except Exception as e:
                problem = problem or e
    raise UsageError(
        f"the state of {cls.__name__} is not known beforehand: a trial on a {dtype} parameter of {len(shape)} dimensions "
        f"failed with {type(problem).__name__}: {problem}. Trace after the optimizer's first step, or name an optimizer that "
        f"keeps as much: {', '.join(names())}"
    ) from problem


@contextlib.contextmanager
def _alone() -> Iterator[None]:
    """Real tensors on the CPU, whatever modes are on; no hooks on all optimizers; random state as before."""
    from torch.optim import optimizer as internals

    hooks = [h for k in ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
             if (h := getattr(internals, k, None)) is not None]  # fmt: skip
    kept = [dict(h) for h in hooks]
    with (
        unset_fake_temporarily(),
        torch.device("cpu"),
        torch.inference_mode(False),
        torch.enable_grad(),
        torch.autocast("cpu", enabled=False),
        torch.random.fork_rng(devices=[]),
    ):
        for h in hooks:
            h.clear()
        try:
            yield
        finally:
            for h, content in zip(hooks, kept, strict=True):
                h.update(content)


def _copied(x: Any) -> Any:
    """An option of its own, on the CPU: a step may write to a learning rate that is a tensor."""
    return x.detach().to("cpu", copy=True) if isinstance(x, torch.Tensor) else copy.deepcopy(x)


def _tensors(tree: Any) -> Iterator[torch.Tensor]:
    if isinstance(tree, torch.Tensor):
        yield tree
    elif isinstance(tree, dict):
        for x in tree.values():
            yield from _tensors(x)
    elif isinstance(tree, Iterable) and not isinstance(tree, str | bytes):
        for x in tree:
            yield from _tensors(x)


def _tensor_bytes(tree: Any) -> int:
    """Bytes of the storages of all tensors in a nest."""
    sizes: dict[Any, int] = {}
    for t in _tensors(tree):
        t = getattr(t, "_local_tensor", t)
        s = storage_of(t)
        sizes[id(t) if s is None else s._cdata] = t.numel() * t.element_size() if s is None else s.nbytes()
    return sum(sizes.values())

"""Bytes that a training loop holds during the whole step; among them the state that an optimizer will hold, computed before its
first step makes it.

There is no table of optimizers. The optimizer's class takes two real steps on tiny parameters whose sizes are distinct primes,
so the size of each state tensor shows which dimensions of the parameter it has. Scaled to the real shape this gives the state
to the byte.
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

from ...arguments import close
from ...ask import LastCount
from ...errors import UsageError
from ...printed import value
from ...saying.sizes import format_bytes
from ..capture.captured import Captured
from ..operators.node_tensors import storage_bytes
from ..private import optimizer_hooks, unset_fake_temporarily
from ..tensors.op_tensors import dense_parts, storage_of
from ..tensors.sharded import local
from ..undo.attributes import plain_tensors


def resident_bytes(model: nn.Module, tensors: Iterable[torch.Tensor], gradients: str = "kept") -> int:
    """Bytes held during the whole step: parameters, buffers, `tensors` (the inputs and others), and kept gradients."""
    seen: dict[Any, int] = {}
    held = [*model.parameters(), *model.buffers(), *tensors]
    for t in [part for whole in held for part in dense_parts(local(whole))]:
        s = t.untyped_storage()
        seen[s._cdata] = s.nbytes()
    return sum(seen.values()) + (gradient_bytes(model) if gradients == "kept" else 0)


def resident_beside(model: nn.Module, tensors: Iterable[torch.Tensor], step: Captured, gradients: str) -> int:
    """Bytes held during the whole of a captured step: `resident_bytes` with the tensors in the module's attributes, those that
    are constants of the step, and the bytes by which attributes take more once forward has set them."""
    attributes = {name: t for name, _, _, t in plain_tensors(model)}
    before = dict(model.named_buffers()) | attributes
    new = {k: step.outputs[a.output].meta["val"] for k, a in step.assigned.items() if a.output is not None}
    newly = sum(max(0, storage_bytes(t) - (storage_bytes(before[k]) if k in before else 0)) for k, t in new.items())
    held = [*tensors, *step.constants.values(), *attributes.values()]
    return resident_bytes(model, held, gradients) + newly


def gradient_bytes(model: nn.Module) -> int:
    """Bytes of a gradient for every trained parameter."""
    trained = [local(p) for p in model.parameters() if p.requires_grad]
    return sum(p.numel() * p.element_size() for p in trained)


Given = Optimizer | type | str | LastCount


def state_bytes(optimizer: Given, model: nn.Module) -> int:
    """Bytes of the state that the optimizer holds after its first step, or that it holds already if they are more.

    Parameters
    ----------
    optimizer : a torch optimizer, with its own parameters and options; or, for all parameters of `model` that require grad, a
        class of optimizers with its default options, or a name such as "adamw" or "sgd-momentum". "muon" means Muon for
        matrices and AdamW for the rest. L-BFGS counts with a full history.

    The optimizer, the model and the random state stay as they are.

    Raises
    ------
    UsageError : the argument is no optimizer, class or name; the name is unknown; or the class fails on small parameters.
    """
    if isinstance(optimizer, LastCount):
        return optimizer.state_bytes
    check(optimizer)
    if (inner := innermost(optimizer)) is not None:
        LastCount.of(optimizer).state_bytes = found = _of_instance(inner)
        return found
    params = [p for p in model.parameters() if p.requires_grad]
    if isinstance(optimizer, str):
        key = optimizer.strip().lower()
        cls, options = optimizers_by_name()[key]
        if key == "muon":
            apart = [[p for p in params if (p.ndim == 2) == two] for two in (True, False)]
            return _coming(cls, {}, apart[0]) + _coming(torch.optim.AdamW, {}, apart[1])
        return _coming(cls, options, params)
    return _coming(optimizer, {}, params)  # type: ignore[arg-type]


def check(given: Any) -> None:
    """Check that the argument is an optimizer, a class of optimizers or a known name.

    Raises
    ------
    UsageError : the argument is something else.
    """
    if isinstance(given, str):
        if given.strip().lower() not in optimizers_by_name():
            raise UsageError(
                f"optimizer={value(given)} is unknown; {close(given.strip().lower(), _names())}the names are "
                f"{', '.join(_names())}. Give one of them, a class of optimizers or an optimizer"
            )
    elif innermost(given) is None and not (isinstance(given, type) and issubclass(given, Optimizer)):
        raise UsageError(
            f"optimizer={value(given)} is no optimizer; give a torch.optim.Optimizer (of a wrapper, the one inside), its "
            f"class, or one of the names {', '.join(_names())}"
        )


def innermost(given: Any) -> Optimizer | None:
    """The optimizer itself, or the one inside a wrapper with an attribute `optimizer`, such as Accelerate's; None: neither."""
    seen: list[Any] = []
    while not isinstance(given, type | str) and given is not None and all(given is not x for x in seen):
        seen.append(given)
        given = getattr(given, "optimizer", None)
    return next((x for x in reversed(seen) if isinstance(x, Optimizer)), None)


def counted(model: nn.Module, optimizer: Given | None, known: int | None) -> tuple[int, str]:
    """(bytes of an optimizer's state that count during the whole step, text that names what a budget in bytes leaves out).

    known : the bytes, if they are known; 0 of an optimizer that has state: it is on the host while the model runs. None: they
    follow from the optimizer; without one, nothing counts, and the text is "optimizer state (AdamW would add 9.2 GiB)".
    """
    if known == 0 and optimizer is not None:
        with contextlib.suppress(UsageError):  # a plan's file may name one that is not known here
            if size := state_bytes(optimizer, model):
                return 0, f'the optimizer\'s state ({format_bytes(size)}), which offload="optimizer" holds on the host'
    if known is None and optimizer is not None:
        return state_bytes(optimizer, model), ""
    return known or 0, "" if known is not None else _not_counted(model)


def _not_counted(model: nn.Module) -> str:
    """Text on what a byte budget leaves out if no optimizer was named: "optimizer state (AdamW would add 9.2 GiB)".

    "" if no parameter requires grad.
    """
    trained = {id(p): p for p in model.parameters() if p.requires_grad}.values()
    # two moments for each element, and a step; asking `state_bytes` would load torch's optimizers, which takes seconds
    size = sum(2 * p.numel() * p.element_size() + torch.float32.itemsize for p in trained)
    return f"optimizer state (AdamW would add {format_bytes(size)})" if size else ""


def state_of_each(optimizer: Optimizer) -> Iterator[tuple[nn.Parameter, int]]:
    """(parameter, bytes of its state after the first step) for all parameters of an optimizer; of L-BFGS, which has one state
    for all, that state goes to the first."""
    for group in optimizer.param_groups:
        options = {k: x for k, x in group.items() if k != "params"}
        params = list({id(p): p for p in group["params"]}.values())  # a parameter that is listed twice steps once
        if isinstance(optimizer, torch.optim.LBFGS):
            yield params[0], max(_tensor_bytes(optimizer.state.values()), _lbfgs(params, options))
            return
        for p in params:
            have = _tensor_bytes([optimizer.state[p]]) if p in optimizer.state else 0
            try:
                come = _coming(type(optimizer), options, [p], optimizer.defaults) if p.requires_grad else 0
            except UsageError:  # it says that the state can be seen once it is there
                if not have:
                    raise
                come = 0
            yield p, max(have, come)


def _of_instance(optimizer: Optimizer) -> int:
    sizes = {id(p): (p, size) for p, size in state_of_each(optimizer)}
    total = sum(size for _, size in sizes.values())
    if isinstance(optimizer, torch.optim.LBFGS):
        return total
    return total + _tensor_bytes([s for p, s in optimizer.state.items() if id(p) not in sizes])


def _coming(cls: type, options: Options, params: Iterable[nn.Parameter], defaults: Options | None = None) -> int:
    """Bytes of the state that the class will make for these parameters."""
    params = list(params)
    if not params:
        return 0
    if issubclass(cls, torch.optim.LBFGS):
        return _lbfgs(params, {"history_size": 100} | options)
    total = 0
    known: dict[Any, Callable[[tuple[int, ...]], int]] = {}
    for p in params:
        local = getattr(p, "_local_tensor", p)  # a DTensor counts by its part on this device
        key = (local.ndim, local.dtype)
        if key not in known:
            known[key] = bytes_by_shape(cls, options, *key, defaults or {})
        total += known[key](tuple(local.shape))
    return total


def _lbfgs(params: list[nn.Parameter], options: Options) -> int:
    """Bytes of the state of L-BFGS with a full history: two vectors and two scalars per step, a direction and a gradient."""
    history = int(options["history_size"])
    size = max(p.element_size() for p in params)
    return (2 * history + 2) * sum(p.numel() for p in params) * size + (2 * history + 2) * size


def _tensor_bytes(tree: Any) -> int:
    """Bytes of all tensors in a nested structure. Tensors that share a storage count no more than it."""
    sizes: dict[Any, tuple[int, int]] = {}
    for t in tensors_of_state(tree):
        t = getattr(t, "_local_tensor", t)
        s, size = storage_of(t), t.numel() * t.element_size()
        key, most = (id(t), size) if s is None else (s._cdata, s.nbytes())
        sizes[key] = most, sizes.get(key, (0, 0))[1] + size
    return sum(map(min, sizes.values()))


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


def _names() -> list[str]:
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
        f"keeps as much: {', '.join(_names())}"
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

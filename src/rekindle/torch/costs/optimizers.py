"""Bytes of the state that an optimizer will hold, known before its first step has made it.

No table says what an optimizer keeps: its class takes two real steps on tiny parameters whose sizes are distinct primes, so
that the shape of each state tensor tells which sizes of the parameter it has. Scaled to the real sizes that is the state to
the byte.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from ...arguments import close
from ...errors import UsageError
from ...sizes import format_bytes
from .optimizer_names import Options, names, optimizers_by_name
from .optimizer_trial import bytes_by_shape, tensors_of_state
from .storages import storage_of

Given = Optimizer | type | str


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
        cls, options = optimizers_by_name()[key]
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
        if given.strip().lower() not in optimizers_by_name():
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
            known[key] = bytes_by_shape(cls, options, *key, defaults or {})
        total += known[key](tuple(local.shape))
    return total


def _lbfgs(params: list[nn.Parameter], options: Options) -> int:
    """Bytes of the state of L-BFGS with its history full: two vectors and two scalars for each of its steps, a direction and
    a gradient."""
    history = int(options["history_size"])
    size = max(p.element_size() for p in params)
    return (2 * history + 2) * sum(p.numel() for p in params) * size + (2 * history + 2) * size


def _tensor_bytes(tree: Any) -> int:
    """Bytes of the storages of all tensors in a nest."""
    sizes: dict[Any, int] = {}
    for t in tensors_of_state(tree):
        t = getattr(t, "_local_tensor", t)
        s = storage_of(t)
        sizes[id(t) if s is None else s._cdata] = t.numel() * t.element_size() if s is None else s.nbytes()
    return sum(sizes.values())

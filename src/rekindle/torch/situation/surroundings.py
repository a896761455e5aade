"""The process state that chooses which operators forward calls: autocast, default dtype, backend flags, global hooks."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import torch
from torch.nn.modules import module as torch_module

from ..private import DeviceContext, function_modes, function_modes_number
from ..tensors import precision
from .callables import HOOKS, is_torchs
from .values import Same, key_of


def surroundings() -> tuple[Any, ...]:
    """A key of the state outside of the arguments that chooses which operators forward calls.

    It holds autocast, the default dtype, flags of torch's backends, function modes, and hooks on all modules.
    """
    cuda = torch.backends.cuda
    cast = casts_now()
    return (
        (*cast, torch.is_autocast_cache_enabled()) if cast else (),
        torch.get_default_dtype(),
        (cuda.flash_sdp_enabled(), cuda.mem_efficient_sdp_enabled(), cuda.math_sdp_enabled(), cuda.cudnn_sdp_enabled()),
        (torch.backends.mkldnn.enabled, torch.backends.cudnn.enabled, precision.of_products()),
        tuple([_mode(m) for m in function_modes()]) if function_modes_number() else (),
        tuple([(i, key_of(h)) for i, t in enumerate(GLOBAL_HOOKS) for h in t.values() if not is_torchs(h)])
        if any(GLOBAL_HOOKS)
        else (),
    )


def flags() -> list[Any]:
    """The settings of the process, but for autocast, by which operators choose dtypes and kernels."""
    return [get() for get, _ in _FLAGS]


def set_flags(found: list[Any]) -> None:
    """Make settings as `flags` gave them the present ones."""
    for (get, put), x in zip(_FLAGS, found, strict=True):
        if get() != x:
            put(x)


def casts_now() -> tuple[tuple[str, torch.dtype], ...]:
    """(kind of device, dtype) of each kind under autocast."""
    return tuple([(k, torch.get_autocast_dtype(k)) for k in _KINDS if torch.is_autocast_enabled(k)])


@contextlib.contextmanager
def autocast_of(found: tuple[Any, ...]) -> Iterator[None]:
    """Inside, autocast is as it was when `surroundings` gave this key."""
    *cast, cached = found[0] or (True,)
    with contextlib.ExitStack() as stack:
        for kind in _KINDS:
            dtype = dict(cast).get(kind)
            stack.enter_context(torch.autocast(kind, dtype=dtype, enabled=dtype is not None, cache_enabled=cached))
        yield


def shares_casts() -> bool:
    """Whether autocast casts a parameter once for all calls, so that its gradients are added in the lower precision."""
    return torch.is_autocast_cache_enabled() and casting_device() != ""


def casting_device() -> str:
    """The kind of device on which autocast casts; "" where it is off."""
    return next((k for k in reversed(_KINDS) if torch.is_autocast_enabled(k)), "")


def is_cast_once(t: torch.Tensor) -> bool:
    """Whether autocast, while `shares_casts`, casts this tensor once for all its uses: it does so for trained leaves."""
    return t.requires_grad and t.is_leaf and t.dtype == torch.float32 and not t._is_view()


def not_in_graphs() -> str:
    """The user's code for all calls that compiled code would not run, as a verb and its object; "" if there is none."""
    if any(GLOBAL_HOOKS) and any(not is_torchs(h) for table in GLOBAL_HOOKS for h in table.values()):
        return "has hooks on all modules"
    if function_modes_number() and any(not isinstance(m, DeviceContext) for m in function_modes()):
        return "is called under a TorchFunctionMode"
    return ""


_KINDS = ("cpu", "cuda") if torch.cuda.is_available() else ("cpu",)  # kinds of devices whose autocast counts here
GLOBAL_HOOKS = [getattr(torch_module, f"_global{kind}") for kind in HOOKS]
_CUDNN = [(torch.backends.cudnn, k) for k in ("enabled", "benchmark", "deterministic")]
_FLAGS: list[tuple[Callable[[], Any], Callable[[Any], Any]]] = [
    (torch.get_default_dtype, torch.set_default_dtype),
    (precision.of_products, torch.set_float32_matmul_precision),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    *((getattr(torch.backends.cuda, f"{k}_enabled"), getattr(torch.backends.cuda, f"enable_{k}"))
      for k in ("flash_sdp", "mem_efficient_sdp", "math_sdp", "cudnn_sdp")),
    *((partial(getattr, x, k), partial(setattr, x, k)) for x, k in ((torch.backends.mkldnn, "enabled"), *_CUDNN)),
]  # fmt: skip


def _mode(m: Any) -> Any:
    return (type(m), m.device) if isinstance(m, DeviceContext) else (Same(m), key_of(vars(m)))

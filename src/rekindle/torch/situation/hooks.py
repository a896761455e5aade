"""The user's hooks on modules, and forwards that replace a submodule's own."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

from torch import nn
from torch.nn.modules import module as torch_module

from .callables import codes_of
from .module_paths import printable

HOOKS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}
# Tables of hooks that neither forward nor backward runs.
_SAVING = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")


def user_hooks(model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """(name for messages, path of the module, function) of the user's hooks on submodules and of replaced forwards."""
    for path, m in model.named_modules():
        if m is model:
            continue
        for attribute, kind in HOOKS.items():
            for fn in list((getattr(m, attribute, None) or {}).values()):
                if not is_torchs(fn):
                    yield f"the {kind} {described(fn)} of {printable(path)}", path, fn
        own = m.__dict__.get("forward")
        if own is not None and not is_torchs(own):
            yield f"the forward {described(own)} that replaces the one of {printable(path)}", path, own
    for attribute, kind in HOOKS.items():
        for fn in list(getattr(torch_module, f"_global{attribute}", {}).values()):
            if not is_torchs(fn):
                yield f"the {kind} {described(fn)} of all modules", "", fn


def added_by_torch(m: nn.Module) -> Iterator[tuple[dict[Any, Any], dict[Any, Any]]]:
    """(table, hooks in it that are torch's own) of the module's hooks on saving and loading. `fully_shard` adds them when the
    model first runs, and never again: without them a state_dict after a forward holds whole tensors instead of shards."""
    for k in _SAVING:
        table = m.__dict__.get(k)
        if isinstance(table, dict) and table:
            yield table, {key: fn for key, fn in table.items() if is_torchs(getattr(fn, "hook", fn))}


def is_torchs(fn: Any) -> bool:
    """Whether the function or class comes from torch (spectral norm, pruning, …) or from this library."""
    fn = getattr(fn, "__func__", fn)
    where = getattr(fn, "__module__", None) or type(fn).__module__
    return str(where).split(".")[0] in ("torch", "rekindle")


def described(fn: Any) -> str:
    """The name of a function, with its file and line."""
    code = next(codes_of(fn), None)
    name = getattr(fn, "__name__", None) or getattr(getattr(fn, "func", None), "__name__", None) or type(fn).__name__
    return name if code is None else f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"

"""Torch's flag that says whether code is being compiled, set for chosen modules."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from . import private


@contextlib.contextmanager
def as_if_compiling(kinds: Sequence[type[nn.Module]] | None) -> Iterator[None]:
    """Inside, `torch.compiler.is_compiling()` is true in forwards of modules of the given classes; None: everywhere."""
    flag = private.told_to_compile()
    before: list[bool] = []

    here = threading.get_ident()  # modules may be called in other threads meanwhile

    def enter(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == here:
            before.append(private.told_to_compile())
            private.tell_to_compile(before[-1] or isinstance(module, tuple(kinds or ())))

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        if threading.get_ident() == here:
            private.tell_to_compile(before.pop())

    with contextlib.ExitStack() as hooks:
        if kinds:
            for handle in (
                register_module_forward_pre_hook(enter),
                register_module_forward_hook(leave, always_call=True),
            ):
                hooks.callback(handle.remove)
        try:
            private.tell_to_compile(flag or kinds is None)
            yield
        finally:
            private.tell_to_compile(flag)

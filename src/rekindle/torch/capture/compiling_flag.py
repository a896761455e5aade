"""Torch's flag that says whether code is being compiled, set for chosen modules."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from torch import nn

from .. import private
from ..situation.module_paths import on_all_modules


class _Told:
    """Stands for the flag: it is true in this thread while `here` is, and as it was in the others, whose modules run."""

    def __init__(self, flag: Any, here: bool) -> None:
        self._others, self.here, self.thread = flag, bool(flag) or here, threading.get_ident()

    def __bool__(self) -> bool:
        return self.here if threading.get_ident() == self.thread else bool(self._others)


@contextlib.contextmanager
def as_if_compiling(kinds: Sequence[type[nn.Module]] | None) -> Iterator[None]:
    """Inside, `torch.compiler.is_compiling()` is true in forwards of modules of the given classes; None: everywhere."""
    flag = private.told_to_compile()
    told, before = _Told(flag, kinds is None), list[bool]()

    def enter(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == told.thread:
            before.append(told.here)
            told.here = told.here or isinstance(module, tuple(kinds or ()))

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        if threading.get_ident() == told.thread:
            told.here = before.pop()

    with contextlib.ExitStack() as hooks:
        if kinds:
            hooks.callback(on_all_modules(enter, leave))
        try:
            private.tell_to_compile(told)
            yield
        finally:
            private.tell_to_compile(flag)

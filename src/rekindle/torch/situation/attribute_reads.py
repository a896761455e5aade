"""Records which attributes of modules forward reads while it is captured; the guards of a plan check these only."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import FrameType
from typing import Any

from torch import nn

from ...saying.frames import is_users

# Attributes that torch itself uses. Guards check parameters, buffers, submodules and hooks in any case.
INTERNAL = frozenset(nn.Module().__dict__) - {"training"}
_HERE = (nn.Module.__getattr__.__code__.co_filename,)  # torch reads `__dict__` for itself there


class Reads:
    """The attributes that forward has read. names : id of a module -> names of its attributes; "*" stands for all.
    late : those that code in backward has read."""

    def __init__(self) -> None:
        self.names: dict[int, set[str]] = {}
        self.late: dict[int, set[str]] = {}

    def by_path(self, model: nn.Module, late: bool = False) -> dict[str, set[str]]:
        """The names by qualified name of the module. late : those that code in backward has read."""
        names = self.late if late else self.names
        return {path: names[id(m)] for path, m in model.named_modules() if id(m) in names}

    def recorded(self, forward: Callable[..., Any]) -> Callable[..., Any]:
        """`forward` with its reads recorded in every call."""

        def call(*args: Any, **kwargs: Any) -> Any:
            with self._recording(self.names, lambda frame: frame.f_code.co_filename not in _HERE):
                return forward(*args, **kwargs)

        return call

    def in_backward(self) -> AbstractContextManager[None]:
        """Inside, reads by the user's code outside of forward are recorded: in hooks, and in autograd functions."""
        return self._recording(self.late, is_users, is_users)

    @contextmanager
    def _recording(
        self,
        names: dict[int, set[str]],
        takes_all: Callable[[FrameType], bool],
        takes: Callable[[FrameType], bool] | None = None,
    ) -> Iterator[None]:
        """Inside, reads of attributes are recorded in `names`.

        takes : whether a frame's reads of attributes count; None: all do. takes_all : whether its reads of `__dict__` count.
        """
        own: Any = nn.Module.__dict__.get("__getattribute__")
        look_up: Any = own or object.__getattribute__
        here = threading.get_ident()

        def read(module: Any, name: str) -> Any:
            if name not in INTERNAL and threading.get_ident() == here:
                if name != "__dict__":
                    if takes is None or takes(sys._getframe(1)):
                        names.setdefault(id(module), set()).add(name)
                elif takes_all(sys._getframe(1)):
                    names.setdefault(id(module), set()).add("*")
            return look_up(module, name)

        nn.Module.__getattribute__ = read  # type: ignore[method-assign, assignment]
        try:
            yield
        finally:
            if own is None:
                del nn.Module.__getattribute__
            else:
                nn.Module.__getattribute__ = own  # type: ignore[method-assign]

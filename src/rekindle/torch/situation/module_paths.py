"""The paths of modules, and lines of the user's code: which ones made a node of a graph; which paths the user marked."""

from __future__ import annotations

import contextlib
import re
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from fnmatch import fnmatchcase
from functools import lru_cache
from types import CodeType
from typing import Any

import torch.fx.traceback as fx_traceback
from torch import fx, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ... import printed
from ...saying.frames import LIBRARIES
from ..private import sequence_number

_PATH, _LINE = "rekindle_module_path", "rekindle_line"
BEHIND = "rekindle_line_behind"  # attribute of an error: the line of forward to which the backward that failed belongs
_LATEST = -2  # no sequence number
_OF_HOOKS = r"Using `torch\.compile\(module\)` when there are global hooks on modules"
_open = 0  # pairs of hooks on all modules


class _Here(dict[str, tuple[str, str]]):
    """The module stack while a module runs. Torch copies it into every node that it makes: the copy has the line as well.

    lines : autograd's sequence number -> the first line that made a node of that number; _LATEST -> the line behind backward's
        latest node.
    """

    lines: dict[int, str]

    def __copy__(self) -> dict[str, tuple[str, str]]:
        line, behind = line_now(), fx_traceback.current_meta.get("grad_fn_seq_nr")
        if behind:  # a node of backward
            self.lines[_LATEST] = self.lines.get(behind[-1], "")
        elif line:
            self.lines.setdefault(sequence_number() - 1, line)  # its autograd node is there already
        return {**self, _LINE: (line, _LINE)}


@contextlib.contextmanager
def paths_followed(model: nn.Module, note: Callable[[str], None]) -> Iterator[None]:
    """Inside, `note` is called with the path of the innermost submodule that runs, whenever one begins or ends."""
    names = {id(m): name for name, m in model.named_modules()}
    entered: list[str] = [""]
    here = threading.get_ident()  # modules may be called in other threads meanwhile

    def enter(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == here:
            entered.append(names.get(id(module), entered[-1]))
            note(entered[-1])

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        if threading.get_ident() == here:
            entered.pop()
            note(entered[-1])

    remove = on_all_modules(enter, leave)
    try:
        yield
    finally:
        remove()


def on_all_modules(enter: Callable[..., None], leave: Callable[..., None] | None = None) -> Callable[[], None]:
    """Call `enter` before and `leave` after every module's forward, until the function that comes back is called.

    Torch warns of such hooks wherever a compiled module runs, as if they were the user's: meanwhile that warning is left out.
    """
    global _open
    handles = [register_module_forward_pre_hook(enter)]
    handles += [] if leave is None else [register_module_forward_hook(leave, always_call=True)]
    _open += 1
    warnings.filterwarnings("ignore", message=_OF_HOOKS)
    left_out = warnings.filters[0]

    def remove() -> None:
        global _open
        for handle in handles:
            handle.remove()
        _open -= 1
        if not _open and left_out in warnings.filters:
            warnings.filters.remove(left_out)  # type: ignore[attr-defined]

    return remove


@contextlib.contextmanager
def module_paths_recorded(model: nn.Module) -> Iterator[None]:
    """A context in which every new node carries the name of the innermost submodule that made it, and the user's line, as its
    module stack."""
    lines: dict[int, str] = {}

    def note(path: str) -> None:
        now = fx_traceback.current_meta["nn_module_stack"] = _Here({_PATH: (path, _PATH)})
        now.lines = lines

    with fx_traceback.preserve_node_meta():
        # If a backward ends in an error while torch traces it, a mark stays, and all later nodes would count as backward's.
        fx_traceback.current_meta = {}
        note("")
        try:
            with paths_followed(model, note):
                yield
        except Exception as e:
            setattr(e, BEHIND, lines.get(_LATEST, ""))
            raise
        finally:
            fx_traceback.current_meta.pop("nn_module_stack", None)


def module_path(n: fx.Node) -> str:
    """Qualified name of the innermost module that made the node, or "". A backward node has the name of its forward's."""
    stack = _stack(n)
    return stack[_PATH][0] if _PATH in stack else ""


def source_line(n: fx.Node) -> str:
    """File and line of the user's code that made the node, or "". A backward node has the line of its forward's."""
    return next((s[_LINE][0] for s in (n.meta.get("fwd_nn_module_stack"), _stack(n)) if s and _LINE in s), "")


def _stack(n: fx.Node) -> Any:
    return n.meta.get("nn_module_stack") or n.meta.get("fwd_nn_module_stack") or {}


def printable(name: str) -> str:
    """A module's name for use in an op's name (`model.op_names`) or a comment: one line, without "|". Different names
    stay different."""
    if name.isprintable() and "|" not in name and "\\" not in name:
        return name
    return "".join(
        "\\x7c" if ch == "|" else ch if ch.isprintable() and ch != "\\" else ch.encode("unicode_escape").decode()
        for ch in name
    )


def is_marked(path: str, must_save: Iterable[str]) -> bool:
    """Whether the ops of the module of that path must run only once: `must_save` has the path, or the path of a module
    around it, as it is or as a pattern (`fnmatch`)."""
    return any(
        path == m or path.startswith(f"{m}.") or fnmatchcase(path, m) or fnmatchcase(path, f"{m}.*") for m in must_save
    )


_END = "rekindle.torch.capture.attempts"  # its frames call the capture: what is above them runs the capture
_ZOO = "rekindle.zoo"  # models like the user's own


def line_now() -> str:
    """File and line of the innermost frame that runs the user's code inside the capture; "" where there is none, as in the
    backward of PyTorch's own ops."""
    frame = sys._getframe(1)
    while frame is not None:
        kind = _kind(frame.f_code, frame.f_globals.get("__name__", ""))
        if kind == "":
            return ""
        if kind is not None:
            return f"{kind}:{frame.f_lineno}"
        frame = frame.f_back  # type: ignore[assignment]
    return ""


@lru_cache(maxsize=4096)
def _kind(code: CodeType, module: str) -> str | None:
    """The short name of the file of the user's code; "": the frame that began the capture; None: a library's frame."""
    if module == _END:
        return ""
    is_library = module.partition(".")[0] in LIBRARIES and not module.startswith(_ZOO)
    return None if is_library or code.co_filename.startswith("<") else short_file(code.co_filename, module)


def short_file(path: str, module: str) -> str:
    """The path of a file from the folder of its package on: messages name no other folder of the user's machine.

    >>> short_file("/home/me/train.py", "__main__"), short_file("/home/me/project/models/train.py", "project.models.train")
    ('train.py', 'models/train.py')
    """
    parts = re.split(r"[/\\]", path)
    inside = module.count(".") + 1 + (parts[-1] == "__init__.py")  # parts of the path that the module's name holds
    return printed.printable("/".join(parts[-min(2, inside) :]))

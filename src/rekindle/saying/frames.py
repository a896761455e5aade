"""Tells the user's stack frames from PyTorch's and Rekindle's."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Callable
from types import FrameType
from typing import Any

LIBRARIES = frozenset(("rekindle", "torch")) | sys.stdlib_module_names


def is_users(frame: FrameType) -> bool:
    """Whether a frame runs the user's code: not PyTorch's, Rekindle's or Python's own. Packages with similar names
    (torchvision) are the user's."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in LIBRARIES


def users_frame() -> FrameType | None:
    """The user's innermost frame that runs now; None: there is none."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None and not (is_users(frame) and not frame.f_code.co_filename.startswith("<")):
        frame = frame.f_back
    return frame


def depth_of_user() -> int:
    """Number of frames from the caller up to the user's innermost one: the `stacklevel` of `warnings.warn` in the caller."""
    depth, frame = 1, sys._getframe(1)
    while frame is not None:
        if is_users(frame):
            return depth
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    return 1


def users_line(e: BaseException) -> tuple[FrameType | None, str]:
    """(frame, words) of the innermost line of the user's code through which an exception came. If there is none, the line in a
    layer of torch.nn; (None, "") if the exception came through neither."""
    own: tuple[FrameType, traceback.FrameSummary] | None = None
    layer = own
    frames = [f for f, _ in traceback.walk_tb(e.__traceback__)]
    for frame, line in zip(frames, traceback.extract_tb(e.__traceback__), strict=True):
        if line.filename.startswith("<"):
            continue
        if is_users(frame):
            own = frame, line
        elif os.path.join("torch", "nn", "modules") in line.filename and os.path.basename(line.filename) != "module.py":
            layer = frame, line
    found = own or layer
    return (None, "") if found is None else (found[0], in_words(found[1]))


def line_of(frame: FrameType) -> str:
    """File, line, function and text of the line that a frame runs, in words."""
    return in_words(traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))


class ChangeFinder:
    """Context manager that finds the user's line after which `look` no longer gives its first answer: it looks at every line.

    line : in words; "": none.
    """

    def __init__(self, look: Callable[[], Any]):
        self._look, self._first, self.line = look, look(), ""
        self._last: traceback.FrameSummary | None = None

    def __enter__(self) -> ChangeFinder:
        self._tracer = sys.gettrace()  # of a debugger
        sys.settrace(self._call)
        return self

    def __exit__(self, *_: object) -> None:
        sys.settrace(self._tracer)
        self._compare()

    def _call(self, frame: FrameType, event: str, arg: Any) -> Any:
        of_python = str(frame.f_globals.get("__name__", "")).partition(".")[0] in sys.stdlib_module_names - {"__main__"}
        made_up = of_python or frame.f_code.co_filename.startswith("<")
        return self._step if is_users(frame) and not made_up else None

    def _step(self, frame: FrameType, event: str, arg: Any) -> Any:
        self._compare()
        self._last = traceback.FrameSummary(frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name)
        return self._step

    def _compare(self) -> None:
        if not self.line and self._last is not None and self._look() != self._first:
            self.line = in_words(self._last)


def in_short(words: str) -> str:
    """File without its folder, and line, as "train.py:88". words : those that `in_words` gives."""
    return os.path.basename(words.split(", in ", 1)[0])


def in_words(line: traceback.FrameSummary) -> str:
    """File, line, function and text of a line, in words."""
    return f'{line.filename}:{line.lineno}, in {line.name}: "{line.line}"'

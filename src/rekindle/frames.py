"""Whose code a frame runs: the user's, or PyTorch's or Rekindle's own."""

from __future__ import annotations

import os
import sys
import traceback
from types import FrameType

_LIBRARIES = ("rekindle", "torch")


def is_users(frame: FrameType) -> bool:
    """Whether its module is neither PyTorch's nor Rekindle's. Packages whose names begin alike (torchvision) are the user's."""
    return str(frame.f_globals.get("__name__", "")).partition(".")[0] not in _LIBRARIES


def depth_of_user() -> int:
    """Frames from the caller to the user's innermost, as `warnings.warn` counts them for the caller (`stacklevel`)."""
    depth, frame = 1, sys._getframe(1)
    while frame is not None:
        if is_users(frame):
            return depth
        depth, frame = depth + 1, frame.f_back  # type: ignore[assignment]
    return 1


def users_line(e: BaseException) -> tuple[FrameType | None, str]:
    """(frame, words) of the innermost line of the user's that an exception came through, else of a layer of torch's;
    (None, "") where it came through neither."""
    own: tuple[FrameType, traceback.FrameSummary] | None = None
    layer = own
    frames = [f for f, _ in traceback.walk_tb(e.__traceback__)]
    for frame, line in zip(frames, traceback.extract_tb(e.__traceback__), strict=True):
        if line.filename.startswith("<") or frame.f_globals.get("__name__") == "contextlib":
            continue
        if is_users(frame):
            own = frame, line
        elif os.path.join("torch", "nn", "modules") in line.filename:
            layer = frame, line
    found = own or layer
    return (None, "") if found is None else (found[0], in_words(found[1]))


def in_words(line: traceback.FrameSummary) -> str:
    """File, line, function and text."""
    return f'{line.filename}:{line.lineno}, in {line.name}: "{line.line}"'

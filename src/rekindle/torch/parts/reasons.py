"""Why a submodule cannot be captured, in few words with the user's line, and which submodules lie around that line."""

from __future__ import annotations

import os
import traceback
from types import FrameType

from torch import nn

from ...errors import TraceError
from ...frames import is_users
from ..tensors.sharded import class_name


def line_of(e: TraceError) -> str:
    """The innermost line of the user's code through which an exception came, as "train.py:88"; "" if there is none."""
    if e.line:
        return e.line
    where = ""
    for frame, line in _frames(_cause(e)):
        if is_users(frame):
            where = f"{os.path.basename(frame.f_code.co_filename)}:{line}"
    return where


def in_few_words(e: TraceError, model: nn.Module) -> str:
    """The reason why a capture of the model failed, such as "Decoder (train.py:88 reads a tensor)"."""
    where = line_of(e)
    through = [] if e.line else _frames(_cause(e))
    inner = [x for f, _ in through if isinstance(x := f.f_locals.get("self"), nn.Module) and is_users(f)]
    name = class_name(inner[-1] if inner else model)
    return f"{name} ({where} {e.reason})" if where else f"{name} ({e.reason})"


def around(e: BaseException, model: nn.Module) -> set[nn.Module]:
    """The submodules whose forward was running where the capture failed: none of them can be captured either."""
    modules = {id(m): m for m in model.modules()}
    return {modules[id(x)] for f, _ in _frames(_cause(e)) if id(x := f.f_locals.get("self")) in modules}


def _cause(e: BaseException) -> BaseException:
    return e.__cause__ if e.__cause__ is not None else e


def _frames(e: BaseException) -> list[tuple[FrameType, int]]:
    tb = e.__traceback__
    found = list(traceback.walk_tb(tb)) if tb is not None else []
    return [(f, line) for f, line in found if f.f_globals.get("__name__") != "contextlib"]

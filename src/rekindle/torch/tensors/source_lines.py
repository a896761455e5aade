"""The line of the user's code that runs while a graph is captured, in short: "models/train.py:88"."""

from __future__ import annotations

import re
import sys
from functools import lru_cache
from types import CodeType

from ...frames import LIBRARIES
from ...printed import printable

_END = "rekindle.torch.capture.attempts"  # its frames call the capture: what is above them runs the capture
_ZOO = "rekindle.zoo"  # models like the user's own
PARTS_MOST = 2  # of a file's path that are kept


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
    """A file as its module names it, so that no folder of the user's machine is told.

    >>> short_file("/home/me/train.py", "__main__"), short_file("/home/me/project/models/train.py", "project.models.train")
    ('train.py', 'models/train.py')
    """
    parts = re.split(r"[/\\]", path)
    inside = module.count(".") + 1 + (parts[-1] == "__init__.py")  # parts of the path that the module's name holds
    return printable("/".join(parts[-min(PARTS_MOST, inside) :]))

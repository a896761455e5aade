"""The line of a model's code that sets an attribute, for messages."""

from __future__ import annotations

import ast
import inspect
import textwrap
import traceback
from collections.abc import Iterator
from typing import Any

from torch import nn

from ...frames import in_words


def line_that_sets(model: nn.Module, attribute: str) -> str:
    """File, line, function and text of the line in which the attribute's owner sets it outside of __init__; "" if not found.

    attribute : its qualified name. A line that sets an entry of it (`self.cache[n] = mask`) counts as well.
    """
    path, _, leaf = attribute.rpartition(".")
    owner = dict(model.named_modules()).get(path)
    for kind in type(owner).__mro__ if owner is not None else ():
        for name, method in vars(kind).items():
            if inspect.isfunction(method) and name != "__init__" and leaf in method.__code__.co_names:
                for line in _lines(method, leaf):
                    return line
    return ""


def _lines(method: Any, leaf: str) -> Iterator[str]:
    try:
        source, first = inspect.getsourcelines(method)
        tree = ast.parse(textwrap.dedent("".join(source)))
    except (OSError, TypeError, SyntaxError):  # typed at a prompt, or a part of a longer expression
        return
    for node in ast.walk(tree):
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        if any(_is_attribute(part, leaf) for t in targets if t is not None for part in ast.walk(t)):
            at = node.lineno - 1  # type: ignore[attr-defined]
            file = inspect.getsourcefile(method) or "?"
            yield in_words(traceback.FrameSummary(file, first + at, method.__name__, line=source[at].strip()))


def _is_attribute(x: ast.AST, leaf: str) -> bool:
    return isinstance(x, ast.Attribute) and x.attr == leaf and isinstance(x.value, ast.Name)

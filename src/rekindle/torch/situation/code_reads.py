"""Names that the bytecode of a function reads: globals with their attributes, and imports."""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

_PASSED: Callable[[str], bool] = frozenset({"EXTENDED_ARG", "CACHE", "COPY", "DUP_TOP"}).__contains__


_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


@functools.lru_cache(maxsize=4096)
def global_paths(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """The globals that code reads, each with the attributes that it reads from there, such as ("config", "gain")."""
    found: dict[tuple[str, ...], None] = {}
    path: tuple[str, ...] = ()
    for i in dis.get_instructions(code):
        if _PASSED(i.opname):
            continue
        if path and i.opname in _READS:
            path = (*path, i.argval)
            continue
        if path and i.opname not in ("STORE_ATTR", "DELETE_ATTR"):
            found[path] = None
        path = (i.argval,) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            found |= dict.fromkeys(global_paths(c))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def imports(code: types.CodeType) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """(level, module, name in it) of each import inside a function; no name: the module as a whole."""
    found: dict[tuple[int, str, tuple[str, ...]], None] = {}
    constants: list[Any] = []
    file: tuple[int, str] | None = None
    for i in dis.get_instructions(code):
        if i.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            constants.append(i.argval)
        elif i.opname == "IMPORT_NAME":
            level, names = constants[-2:]
            file = (level, i.argval)
            if not names:  # import a.b: the code then reads b from a
                parts = i.argval.split(".")
                found |= {(level, ".".join(parts[: n + 1]), ()): None for n in range(len(parts))}
        elif i.opname == "IMPORT_FROM" and file is not None:
            found[*file, (i.argval,)] = None
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            found |= dict.fromkeys(imports(c))
    return tuple(found)


def all_names(code: types.CodeType) -> Iterator[str]:
    """Names in the code of a function and of the functions that it defines."""
    yield from code.co_names
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from all_names(c)

"""CODE"""

from __future__ import annotations

import dis
import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

_PASSED: Callable[[str], bool] = frozenset({"EXTENDED_ARG", "CACHE", "COPY", "DUP_TOP"}).__contains__


_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


@functools.lru_cache(maxsize=4096)
def ways(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """Names that code reads outside of its variables, each with the attributes it goes on to: ("config", "gain")."""
    found: dict[tuple[str, ...], None] = {}
    way: tuple[str, ...] = ()
    for i in dis.get_instructions(code):
        if _PASSED(i.opname):
            continue
        if way and i.opname in _READS:
            way = (*way, i.argval)
            continue
        if way and i.opname not in ("STORE_ATTR", "DELETE_ATTR"):
            found[way] = None
        way = (i.argval,) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            found |= dict.fromkeys(ways(c))
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def imports(code: types.CodeType) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """(level, file, name in it) of the imports inside of a function; no name: the file as a whole."""
    found: dict[tuple[int, str, tuple[str, ...]], None] = {}
    constants: list[Any] = []
    file: tuple[int, str] | None = None
    for i in dis.get_instructions(code):
        if i.opname in ("LOAD_CONST", "LOAD_SMALL_INT"):
            constants.append(i.argval)
        elif i.opname == "IMPORT_NAME":
            level, names = constants[-2:]
            file = (level, i.argval)
            if not names:  # import a.b: code goes on from a to b
                parts = i.argval.split(".")
                found |= {(level, ".".join(parts[: n + 1]), ()): None for n in range(len(parts))}
        elif i.opname == "IMPORT_FROM" and file is not None:
            found[*file, (i.argval,)] = None
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            found |= dict.fromkeys(imports(c))
    return tuple(found)


def all_names(code: types.CodeType) -> Iterator[str]:
    """Names in a function and in those that it defines."""
    yield from code.co_names
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from all_names(c)

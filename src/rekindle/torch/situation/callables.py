"""The code of a callable: functions that it runs, names that it mentions, objects that it refers to."""

from __future__ import annotations

import builtins
import dis
import functools
import types
from collections.abc import Iterator
from typing import Any

from ..tensors.fields import is_users

_TOLD = {"print", "log", "logger", "logging", "warnings"}  # globals by which code prints or logs


_TELLS = {
    "log",
    "info",
    "warning",
    "warn",
    "debug",
    "error",
    "write",
    "writelines",
    "add_scalar",
}  # methods that print, log or write


_NUMERIC = {"torch", "math", "np", "numpy", "F"}  # names whose `log` is a logarithm


def functions_of(fn: Any) -> Iterator[types.FunctionType]:
    """The Python functions that a call of `fn` runs, as far as its type shows."""
    if isinstance(fn, functools.partial):
        yield from functions_of(fn.func)
    elif isinstance(fn, types.MethodType):
        yield from functions_of(fn.__func__)
    elif isinstance(fn, types.FunctionType):
        yield fn
    elif not isinstance(fn, types.BuiltinFunctionType | type):
        call = getattr(type(fn), "__call__", None)  # noqa: B004
        if isinstance(call, types.FunctionType):
            yield call


def codes_of(fn: Any) -> Iterator[types.CodeType]:
    """The code that a call of `fn` runs, with the code of functions defined inside."""
    stack = [f.__code__ for f in functions_of(fn)]
    while stack:
        code = stack.pop()
        yield code
        stack += [c for c in code.co_consts if isinstance(c, types.CodeType)]


def names_in(code: types.CodeType) -> set[str]:
    """Names of attributes and globals in the code, and its string constants."""
    return {*code.co_names, *(c for c in code.co_consts if isinstance(c, str))}


def global_names(fn: types.FunctionType) -> set[str]:
    return {k for code in codes_of(fn) for k in code.co_names if k in fn.__globals__ and not hasattr(builtins, k)}


def references(fn: Any) -> list[Any]:
    """Objects that a callable refers to: cells, defaults, the object that it is a method of, globals that it names, …"""
    if isinstance(fn, functools.partial):
        return [*references(fn.func), *fn.args, *fn.keywords.values()]
    if isinstance(fn, types.MethodType):
        return [fn.__self__, *references(fn.__func__)]
    if not isinstance(fn, types.FunctionType):
        return [fn, *(x for f in functions_of(fn) for x in references(f))]
    inner = getattr(fn, "__wrapped__", None)
    return [
        *(fn.__closure__ or ()), *(fn.__defaults__ or ()), *(fn.__kwdefaults__ or {}).values(), fn.__dict__,
        *(GlobalName(fn.__globals__, k) for k in global_names(fn)), *([inner] if inner is not None else []), *_in_files(fn),
    ]  # fmt: skip


def _in_files(fn: types.FunctionType) -> Iterator[GlobalName]:
    """The names in other files of the user's that the code mentions (`settings.scale`)."""
    for held in (
        vars(x) for k in global_names(fn) if isinstance(x := fn.__globals__[k], types.ModuleType) and is_users(x)
    ):
        yield from (
            GlobalName(held, k) for k in dict.fromkeys(k for code in codes_of(fn) for k in code.co_names) if k in held
        )


def prints_or_logs(fn: Any) -> bool:
    """Whether the code of `fn` prints, logs or writes."""
    for code in codes_of(fn):
        arguments = code.co_varnames[: code.co_argcount]
        before: Any = None
        for i in dis.get_instructions(code):
            if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") and i.argval in _TOLD:
                return True
            if i.opname in ("LOAD_METHOD", "LOAD_ATTR") and i.argval in _TELLS:
                source = before.argval if before is not None and before.opname.startswith("LOAD_") else None
                of_a_tensor = source is None or source in _NUMERIC or source in arguments and source != "self"
                if i.argval != "log" or not of_a_tensor:
                    return True
            before = i
    return False


class GlobalName:
    """A name among the globals of a function."""

    def __init__(self, where: Any, name: str):
        self.where, self.name = where, name

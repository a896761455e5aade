"""The code of callables: functions that it runs, names that it reads, objects that it refers to, lines that set attributes."""

from __future__ import annotations

import ast
import builtins
import dis
import functools
import inspect
import textwrap
import traceback
import types
from collections.abc import Collection, Iterator
from typing import Any

from torch import nn

from ...saying.frames import in_words
from ..tensors.objects import cells_of, function_in, is_users, reached

_TOLD = {"print", "log", "logger", "logging", "warnings"}  # globals by which code prints or logs
# Methods that print, log or write.
_TELLS = {"log", "info", "warning", "warn", "debug", "error", "write", "writelines", "add_scalar"}
_NUMERIC = {"torch", "math", "np", "numpy", "F"}  # names whose `log` is a logarithm
_PASSED = frozenset({"EXTENDED_ARG", "CACHE", "COPY", "DUP_TOP"})
_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})


class GlobalName:
    """A name among the globals of a function."""

    def __init__(self, where: Any, name: str):
        self.where, self.name = where, name


def functions_of(fn: Any) -> Iterator[types.FunctionType]:
    """The Python functions that a call of `fn` runs, as far as its type shows."""
    fn = function_in(fn)
    if isinstance(fn, functools.partial):
        yield from functions_of(fn.func)
    elif isinstance(fn, types.FunctionType):
        yield fn
    elif not isinstance(fn, types.BuiltinFunctionType | type):
        call = getattr(type(fn), "__call__", None)  # noqa: B004
        if isinstance(call, types.FunctionType):
            yield call


CLOSURE_MOST = 2_000  # objects of one closure that are looked at; a guess


def closure_of(f: Any) -> Iterator[Any]:
    """The function in f, which may be a partial or a method, and the objects in its closure, in closures of functions there,
    and so on, each once. Any other f is the only object."""

    def bare(x: Any) -> Any:
        return function_in(x.func if type(x) is functools.partial else x)

    def inside(x: Any) -> list[Any]:
        return [bare(c.cell_contents) for c in cells_of(x)] if type(x) is types.FunctionType else []

    return reached([bare(f)], inside, CLOSURE_MOST)


def codes_of(fn: Any) -> Iterator[types.CodeType]:
    """The code that a call of `fn` runs, with the code of functions defined inside."""
    for f in functions_of(fn):
        yield from codes_in(f.__code__)


def codes_in(code: types.CodeType, apart: Collection[types.CodeType] = ()) -> Iterator[types.CodeType]:
    """The code of a function, and of the functions that it defines, apart from some."""
    if code in apart:
        return
    yield code
    for c in code.co_consts:
        if isinstance(c, types.CodeType):
            yield from codes_in(c, apart)


def without_closure(code: types.CodeType, table: dict[str, Any]) -> types.FunctionType:
    """A function of this code whose variables of enclosing functions have no values. table : its globals."""
    return types.FunctionType(code, table, closure=tuple([types.CellType() for _ in code.co_freevars]))


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


@functools.lru_cache(maxsize=4096)
def global_paths(code: types.CodeType) -> tuple[tuple[str, ...], ...]:
    """The globals that code reads, each with the attributes that it reads from there, such as ("config", "gain"). The functions
    that it defines are left out."""
    found: dict[tuple[str, ...], None] = {}
    path: tuple[str, ...] = ()
    for i in dis.get_instructions(code):
        if i.opname in _PASSED:
            continue
        if path and i.opname in _READS:
            path = (*path, i.argval)
            continue
        if path and i.opname not in ("STORE_ATTR", "DELETE_ATTR"):
            found[path] = None
        path = (i.argval,) if i.opname in ("LOAD_GLOBAL", "LOAD_NAME") else ()
    return tuple(found)


@functools.lru_cache(maxsize=4096)
def imports(code: types.CodeType) -> tuple[tuple[int, str, tuple[str, ...]], ...]:
    """(level, module, name in it) of each import in code, apart from the functions that it defines; no name: the module as a
    whole."""
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
    return tuple(found)


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

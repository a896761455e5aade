"""The code of callables: functions that it runs, names that it reads, objects that it refers to, lines that set attributes;
the user's hooks on modules, and forwards that replace a submodule's own; functions that keep their results, with
`functools.lru_cache`: those that kept tensors of a capture are emptied.
"""

from __future__ import annotations

import builtins
import dis
import functools
import gc
import inspect
import os
import sys
import traceback
import types
from collections.abc import Collection, Iterable, Iterator
from typing import Any

import torch
from torch import nn
from torch.nn.modules import module as torch_module

from ...saying.frames import in_words
from ..private import FunctionalTensor, is_fake
from ..tensors.objects import cells_of, function_in, is_installed, is_users, reached
from .module_paths import printable

_TOLD = {"print", "log", "logger", "logging", "warnings"}  # globals by which code prints or logs
# Methods that print, log or write.
_TELLS = {"log", "info", "warning", "warn", "debug", "error", "write", "writelines", "add_scalar"}
_NUMERIC = {"torch", "math", "np", "numpy", "F"}  # names whose `log` is a logarithm
_PASSED = frozenset({"EXTENDED_ARG", "CACHE", "COPY", "DUP_TOP"})
_READS = frozenset({"LOAD_ATTR", "LOAD_METHOD"})
_STORES = frozenset({"STORE_SUBSCR", "STORE_SLICE"})  # an entry, or a slice
VARIABLE, GLOBAL, DEFAULT = "the variable ", "the global ", "the default argument "  # how names begin in messages


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


def closure_of(f: Any) -> Iterator[Any]:
    """The function in f, which may be a partial or a method, and the objects in its closure, in closures of functions there,
    and so on, each once. Any other f is the only object."""

    def bare(x: Any) -> Any:
        return function_in(x.func if type(x) is functools.partial else x)

    def inside(x: Any) -> list[Any]:
        return [bare(c.cell_contents) for c in cells_of(x)] if type(x) is types.FunctionType else []

    return reached([bare(f)], inside)


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


def variables_of(fn: types.FunctionType) -> Iterator[tuple[str, Any]]:
    """(name for messages, object) of each default argument, variable of an enclosing function, and global of a function."""
    code, given = fn.__code__, fn.__defaults__ or ()
    defaults = zip(code.co_varnames[max(0, code.co_argcount - len(given)) : code.co_argcount], given, strict=False)
    yield from ((f"{DEFAULT}{k}", x) for k, x in (*defaults, *(fn.__kwdefaults__ or {}).items()))
    yield from ((f"{VARIABLE}{k}", cell) for k, cell in zip(code.co_freevars, fn.__closure__ or (), strict=True))
    yield from ((f"{GLOBAL}{k}", GlobalName(fn.__globals__, k)) for k in sorted(global_names(fn)))


def references(fn: Any) -> list[Any]:
    """Objects that a callable refers to: cells, defaults, the object that it is a method of, globals that it names, …"""
    if isinstance(fn, functools.partial):
        return [*references(fn.func), *fn.args, *fn.keywords.values()]
    if isinstance(fn, types.MethodType):
        return [fn.__self__, *references(fn.__func__)]
    if not isinstance(fn, types.FunctionType):
        return [fn, *(x for f in functions_of(fn) for x in references(f))]
    inner = getattr(fn, "__wrapped__", None)
    return [*(x for _, x in variables_of(fn)), fn.__dict__, *([inner] if inner is not None else []), *_in_files(fn)]


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


def _lines(method: types.FunctionType, leaf: str) -> Iterator[str]:
    for code in codes_in(method.__code__):
        read = set()  # lines that read the attribute, of which one may then set an entry
        for i in dis.get_instructions(code):
            at = i.positions.lineno if i.positions is not None else None
            if i.opname in _READS and i.argval == leaf:
                read.add(at)
            sets = i.argval == leaf if i.opname == "STORE_ATTR" else i.opname in _STORES and at in read
            if sets and (line := traceback.FrameSummary(code.co_filename, at, method.__name__)).line:
                yield in_words(line)


HOOKS = {
    "_forward_hooks": "forward hook",
    "_forward_pre_hooks": "forward pre-hook",
    "_backward_hooks": "backward hook",
    "_backward_pre_hooks": "backward pre-hook",
}
# Tables of hooks that neither forward nor backward runs.
_SAVING = ("_state_dict_hooks", "_state_dict_pre_hooks", "_load_state_dict_pre_hooks", "_load_state_dict_post_hooks")


def user_hooks(model: nn.Module) -> Iterator[tuple[str, str, Any]]:
    """(name for messages, path of the module, function) of the user's hooks on submodules and of replaced forwards."""
    for path, m in model.named_modules():
        if m is model:
            continue
        for attribute, kind in HOOKS.items():
            for fn in list((getattr(m, attribute, None) or {}).values()):
                if not is_torchs(fn):
                    yield f"the {kind} {described(fn)} of {printable(path)}", path, fn
        own = m.__dict__.get("forward")
        if own is not None and not is_torchs(own):
            yield f"the forward {described(own)} that replaces the one of {printable(path)}", path, own
    for attribute, kind in HOOKS.items():
        for fn in list(getattr(torch_module, f"_global{attribute}", {}).values()):
            if not is_torchs(fn):
                yield f"the {kind} {described(fn)} of all modules", "", fn


def added_by_torch(m: nn.Module) -> Iterator[tuple[dict[Any, Any], dict[Any, Any]]]:
    """(table, hooks in it that are torch's own) of the module's hooks on saving and loading. `fully_shard` adds them when the
    model first runs, and never again: without them a state_dict after a forward holds whole tensors instead of shards."""
    for k in _SAVING:
        table = m.__dict__.get(k)
        if isinstance(table, dict) and table:
            yield table, {key: fn for key, fn in table.items() if is_torchs(getattr(fn, "hook", fn))}


def is_torchs(fn: Any) -> bool:
    """Whether the function or class comes from torch (spectral norm, pruning, …) or from this library."""
    fn = getattr(fn, "__func__", fn)
    where = getattr(fn, "__module__", None) or type(fn).__module__
    return str(where).split(".")[0] in ("torch", "rekindle")


def described(fn: Any) -> str:
    """The name of a function, with its file and line."""
    code = next(codes_of(fn), None)
    name = getattr(fn, "__name__", None) or getattr(getattr(fn, "func", None), "__name__", None) or type(fn).__name__
    return name if code is None else f"{name} ({os.path.basename(code.co_filename)}:{code.co_firstlineno})"


_CACHE = type(functools.lru_cache(int))
_NESTED = (tuple, list, dict)  # kinds of results in which tensors may stand
_OWN = ("torch", "rekindle")  # packages whose caches are their own affair
_of_installed: dict[str, list[Any]] = {}  # name of an installed file -> its caches: such files do not change


def caches_emptied(model: nn.Module, everywhere: bool = False) -> bool:
    """Empty the caches that kept tensors without data, which a capture of the model left there; whether there were any.

    A plain step would fail on such tensors. A function that kept one keeps a real tensor after the first plain step, and
    later steps do not compute it again: their graph is another one.

    The user's own files, and the classes of the model's modules, are looked through at each call: a cell of a notebook may
    have defined a function since. Of installed packages, those are looked through that modules of the model are from.

    everywhere : look through all packages.
    """
    kinds = {kind for m in model.modules() for kind in type(m).__mro__ if _package(kind.__module__) not in _OWN}
    packages = {_package(kind.__module__) for kind in kinds}
    held = [x for m in model.modules() for x in list(vars(m).values())]
    found = [c for x in [*kinds, *held] for c in _in_definition(x)]
    for name, file in list(sys.modules.items()):
        package = _package(name)
        if package in _OWN or package in sys.stdlib_module_names or not isinstance(file, types.ModuleType):
            continue
        if not is_installed(getattr(file, "__file__", None)):
            found += _in_file(file)
        elif everywhere or package in packages:
            if name not in _of_installed:
                _of_installed[name] = _in_file(file)
            found += _of_installed[name]
    filled = [c for c in found if holds_traced(gc.get_referents(c))]
    for c in filled:
        c.cache_clear()
    return bool(filled)


def _in_file(file: types.ModuleType) -> list[Any]:
    return [c for x in list(vars(file).values()) for c in _in_definition(x)]


def _package(module: str) -> str:
    return module.partition(".")[0]


def _in_definition(x: Any) -> Iterator[Any]:
    """Caches that a function is, or that it has in its closure; of a class, those of its methods."""
    for f in list(vars(x).values()) if isinstance(x, type) else [x]:
        f = function_in(f)
        if type(f) is _CACHE or type(f) is types.FunctionType and f.__closure__:  # few functions are
            yield from (c for c in closure_of(f) if type(c) is _CACHE)


def holds_traced(values: Iterable[Any], depth: int = 2) -> bool:
    """Whether a tensor without data stands among the values, or in a list, tuple or dict among them."""
    for x in values:
        if isinstance(x, torch.Tensor):
            if isinstance(x, FunctionalTensor) or is_fake(x):
                return True
        elif depth and type(x) in _NESTED and holds_traced(x.values() if isinstance(x, dict) else x, depth - 1):
            return True
    return False

"""Checks the module, its parameters, the sample and the state of the process before any long work."""

from __future__ import annotations

import contextlib
import dataclasses
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn.parameter import is_lazy

from ..arguments import close, names_in
from ..compiling import CompileOptions
from ..errors import TraceError, UsageError
from ..printed import value
from ..saying.frames import is_users
from ..saying.progress import Progress
from . import private
from .situation.module_paths import is_marked
from .tensors import sharded, tree
from .tensors.lock import LOCK
from .tensors.objects import fields_of
from .undo.attributes import plain_tensors

# Names of classes, not classes: most of their modules take seconds to import, or do not exist on every platform.
_WRAPPERS = ("DistributedDataParallel", "DataParallel", "FullyShardedDataParallel")


# -- the process -------------------------------------------------------------------------------------------------------
def process(what: str, depth: int = 2) -> None:
    """Check that planning can work here.

    what : the function that was called, for the message. depth : frames up to its caller.

    Raises
    ------
    UsageError : inside a function that torch.func transforms or torch.compile compiles, or that planning runs.
    """
    if LOCK.plans and is_users(sys._getframe(depth)):
        raise UsageError(
            f"rekindle.{what} was called by code that runs while this thread {LOCK.doing}: one plan cannot be made inside of "
            "another. Call it before, outside of forward"
        )
    if private.in_func_transform():
        raise UsageError(
            f"rekindle.{what} was called inside a torch.func transform (vmap, grad, jvp, …), where tensors stand for others; "
            "call it outside, before the transform"
        )
    if private.in_torch_compile():
        raise UsageError(
            f"rekindle.{what} was called inside a function that torch.compile compiles; call it outside, before the "
            "compiled function runs"
        )


def alone(what: str, model: Any, progress: Progress = None) -> contextlib.AbstractContextManager[None]:
    """Inside, no other thread plans, and none begins a call of the model. what : the public function that is called."""
    return LOCK.planning(f"runs rekindle.{what}({type(model).__name__})", model, progress)


@contextlib.contextmanager
def gradients_on() -> Iterator[None]:
    """Record gradients inside, even if the caller is under no_grad or inference_mode."""
    with torch.inference_mode(False), torch.enable_grad():
        yield


def measurable(model: nn.Module, args: Any, kwargs: Any) -> None:
    """Check that the memory of a step can be measured, as `checkpoint` does at its end.

    Raises
    ------
    UsageError : another profiler is running, or the tensors are on a device whose allocator cannot be read; or as
        `parameters`.
    """
    tensors = [*model.parameters(), *tree.flatten((args, kwargs))[0]]
    parameters(model, tensors)
    if private.fake_mode_of(tensors) is not None or not tensors:
        return
    kind = tensors[0].device.type
    if kind not in ("cpu", "cuda"):
        raise UsageError(
            f"the model is on device {kind!r}, whose memory cannot be measured; move it to cpu or cuda, build it under "
            "FakeTensorMode to plan without memory, or pass check=False"
        )
    if kind == "cpu" and private.profiler_is_running():
        raise UsageError(
            "another profiler is running, and torch allows one at a time: the plan's memory cannot be measured. Stop the "
            "profiler first, or pass check=False"
        )


# -- the module --------------------------------------------------------------------------------------------------------
def module(model: Any) -> None:
    """Check that the model is a plain module, neither wrapped nor compiled.

    Raises
    ------
    UsageError : the model is something else; the message says what to give instead.
    """
    if isinstance(model, type) and issubclass(model, nn.Module):
        raise UsageError(f"model is the class {model.__name__}, not a module; make one first: {model.__name__}(…)")
    if not isinstance(model, nn.Module):
        hint = "; put its parameters and its code into an nn.Module" if callable(model) else ""
        raise UsageError(f"model is {_a(model)}, not a torch.nn.Module{hint}")
    kinds = {c.__name__: c.__module__ for c in type(model).__mro__}
    for name in _WRAPPERS:
        if kinds.get(name, "").startswith("torch."):
            raise UsageError(
                f"model is wrapped in {name}, whose own work cannot be planned; plan the module inside, model.module, "
                f"before it is wrapped: {name}(rekindle.checkpoint(module, sample, …))"
            )
    if kinds.get("OptimizedModule", "").startswith("torch."):
        raise UsageError(
            "model is compiled by torch.compile already; plan the module inside, model._orig_mod, and compile no part of it "
            "that is planned"
        )
    if isinstance(model, torch.jit.ScriptModule):
        raise UsageError(
            "model is a ScriptModule (torch.jit), whose code cannot be captured; plan the module it was made from"
        )


def parameters(model: nn.Module, tensors: Sequence[torch.Tensor]) -> None:
    """Check that parameters hold numbers, on the sample's kind of device, and that there is something to train.

    Raises
    ------
    UsageError : a parameter is uninitialised, on meta beside a real sample, sharded, quantised or sparse; one, or a buffer or
        attribute, was made under inference_mode; there is none and no tensor of the sample requires grad; or a submodule is
        planned already.
    """
    for name, m in model.named_modules():
        if name and hasattr(type(m.__dict__.get("forward")), "plain"):
            raise UsageError(
                f"the submodule {name!r} is planned already, and a plan cannot hold another; take it off first: "
                f"rekindle.restore(model.get_submodule({name!r}))"
            )
    named = list(model.named_parameters())
    for name, p in named:
        if is_lazy(p):
            raise UsageError(
                f"parameter {name!r} is uninitialised (a lazy module has not seen its first input); call model(…) once on the "
                "sample, then plan"
            )
        _plain(p, f"parameter {name!r}")
        if sharded.is_sharded(p):
            raise UsageError(
                f"parameter {name!r} is a DTensor: the model was sharded before it was planned; "
                f"{sharded.order_that_works(model)}"
            )
    every = [("parameter", k, p) for k, p in named] + [("buffer", k, b) for k, b in model.named_buffers()]
    for kind, name, t in [*every, *(("attribute", k, x) for k, _, _, x in plain_tensors(model))]:
        if t.is_inference():
            copied = "nn.Parameter(….clone())" if kind == "parameter" else ".clone()"
            raise UsageError(
                f"{kind} {name!r} was made under torch.inference_mode, and planned steps cannot use it: torch keeps no such "
                f"tensor for backward. Make the model outside of it, or put a copy in its place that was made outside: {copied}"
            )
    if not named and not any(t.requires_grad for t in tensors):
        raise UsageError(
            f"{type(model).__name__} has no parameters and no tensor of the sample requires grad: there is nothing to train "
            "and no backward to plan"
        )
    meta = [name for name, p in named if p.is_meta and not private.is_fake(p)]
    real = [t for t in tensors if t.numel() and not t.is_meta]
    if meta and real:
        raise UsageError(
            f"parameter {meta[0]!r} is on the meta device, which holds no numbers, and the sample is on {real[0].device}; "
            "load the weights first (model.to_empty(device=…), load_state_dict), or plan under FakeTensorMode, sample included"
        )
    unreal = [t for t in tensors if t.is_meta and not private.is_fake(t)]
    if unreal and any(not p.is_meta for _, p in named):
        raise UsageError(
            "a tensor of the sample is on the meta device, which holds no numbers, and the model is not; move the sample to "
            "the model's device"
        )


def fully_sharded(model: nn.Module, compiled: CompileOptions | None, strict: bool) -> TraceError | None:
    """Why a model that `fully_shard` has sharded is planned by parts; None: it is not sharded so, or parts are not wanted.

    Raises
    ------
    UsageError : parts are to be compiled, and the model's tensors have no numbers.
    """
    if compiled is not None and any(private.is_fake(p) or p.is_meta for p in model.parameters()):
        raise UsageError(
            "compile=True: ways are measured, and tensors without numbers run nothing; give the real model"
        )
    if strict or not sharded.any_fully_sharded(model):
        return None
    name = sharded.class_name(model)
    return TraceError(
        f"{name} is sharded by fully_shard, and a plan of it as a whole must be made before that: plan it first, then call "
        "fully_shard",
        reason="is sharded",
    )


def optimizer(given: Any) -> None:
    """Check that the argument is an optimizer, its class, a known name, or None.

    Raises
    ------
    UsageError : the argument is something else.
    """
    from .costs.resident import check

    if given is not None:
        check(given)


def must_save(model: nn.Module, given: Any) -> tuple[str, ...]:
    """The names or patterns of `must_save` as a tuple; a bare string is one name.

    Raises
    ------
    UsageError : a name is no string, or matches no submodule; the message lists names that are close.
    """
    given = names_in("must_save", given, "names of submodules, or patterns such as 'blocks.*.router'")
    names = [name for name, _ in model.named_modules() if name]
    for pattern in given:
        if any(is_marked(name, (pattern,)) for name in names):
            continue
        first = {id(m): name for name, m in reversed(list(model.named_modules()))}
        also = [first[id(m)] for name, m in model.named_modules(remove_duplicate=False) if fnmatchcase(name, pattern)]
        if also and also[0]:
            raise UsageError(
                f"must_save: {value(pattern)} is a second name of the submodule {also[0]!r}; give that name"
            )
        raise _no_submodule("must_save", pattern, names, model)
    return given


def parts(model: nn.Module, given: Any) -> tuple[str, ...]:
    """The names of the submodules that `parts` names; a submodule inside of another one is left out.

    Raises
    ------
    UsageError : it is no name or pattern and no list of them, or one names no submodule; the message lists close names.
    """
    of = "names of submodules, or patterns such as 'blocks.*'"
    given = names_in("parts", given, of)
    if not given:
        raise UsageError(f"parts={given} must be {of}")
    names = [name for name, _ in model.named_modules() if name]
    # A submodule with two parents is planned under its first name.
    first = {m: name for name, m in model.named_modules()}
    every = {name: first[m] for name, m in model.named_modules(remove_duplicate=False) if first[m]}
    found: set[str] = set()
    for pattern in given:
        hits = {name for name in every if fnmatchcase(name, pattern)}
        if not hits:
            raise _no_submodule("parts", pattern, names, model)
        found |= hits
    found = _outermost({every[name] for name in _outermost(found)})
    return tuple(name for name in names if name in found)


def _outermost(names: Collection[str]) -> set[str]:
    """The names of submodules that are inside of none of the others."""
    return {name for name in names if not any(name.startswith(f"{other}.") for other in names)}


def _no_submodule(argument: str, pattern: str, names: Sequence[str], model: nn.Module) -> UsageError:
    few = ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
    known = f"{close(pattern, names)}its submodules are {few}" if names else "it has none"
    return UsageError(f"{argument}: {value(pattern)} names no submodule of {type(model).__name__}; {known}")


# -- the sample --------------------------------------------------------------------------------------------------------
def sample(given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of the call with this sample.

    Raises
    ------
    UsageError : the sample is no tensor, tuple or mapping, or holds something that cannot be planned; the message says where.
    """
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = {}
    if isinstance(given, torch.Tensor):
        args = (given,)
    elif isinstance(given, Mapping):
        kwargs = {k: given[k] for k in given}
        for k in kwargs:
            if not isinstance(k, str):
                raise UsageError(
                    f"sample has the key {value(k)}; a dict is taken as keyword arguments, whose names are strings"
                )
    elif isinstance(given, tuple | list):
        args = tuple(given)
    else:
        raise UsageError(
            f"sample is {_a(given)}; {_instead(given)}give a tensor, a tuple of positional arguments or a dict of keyword ones"
        )
    _walk(given, "sample")
    return args, kwargs


def _a(x: Any) -> str:
    return "None" if x is None else f"of type {type(x).__name__}"


def _instead(x: Any) -> str:
    return "make it a tensor (torch.from_numpy); " if isinstance(x, np.ndarray) else ""


def _walk(x: Any, at: str) -> None:
    """Check everything in which `tree.flatten` would look for tensors."""
    if isinstance(x, torch.Tensor):
        _fit(x, at)
    elif isinstance(x, set | frozenset):
        if any(isinstance(y, torch.Tensor) for y in x):
            raise UsageError(
                f"{at} is a {type(x).__name__} of tensors, whose order is not fixed; give a list or a tuple"
            )
    elif isinstance(x, tree.PLAIN):
        return
    elif isinstance(x, np.ndarray):
        raise UsageError(f"{at} is a NumPy array, which a plan would fix for good; make it a tensor (torch.from_numpy)")
    elif isinstance(x, Iterator):
        raise UsageError(f"{at} is a {type(x).__name__}, which can be read only once; give a list or a tuple")
    elif hasattr(type(x), "get_seq_length"):  # a cache of transformers: state, which `tree` does not take apart
        return
    elif isinstance(x, Mapping | tuple | list):
        for k, inside in tree.held_in(x).items():
            _walk(inside, f"{at}[{k!r}]")
    elif isinstance(x, type):
        return
    elif dataclasses.is_dataclass(x):
        for f in dataclasses.fields(x):
            _walk(getattr(x, f.name), f"{at}.{f.name}")
    elif tree.tensors_in(x):
        for k, inside in fields_of(x).items():
            _walk(inside, f"{at}.{k}")
    elif isinstance(x, nn.Module) or tree.flatten(dict(getattr(x, "__dict__", {})), opaque_ok=True)[0]:
        raise UsageError(
            f"{at} is a {type(x).__name__} that holds tensors, which a plan could not see change; give the tensors "
            "themselves, in tuples, lists, dicts or dataclasses"
        )


def _fit(t: torch.Tensor, at: str) -> None:
    _plain(t, at)
    if t.is_inference():
        raise UsageError(
            f"{at} was made under torch.inference_mode, and planned steps cannot use it: torch keeps no such tensor for "
            f"backward. Give {at}.clone() made outside of it"
        )
    if sharded.is_sharded(t):
        raise UsageError(f"{at} is a DTensor, which has another shape on every rank; give {at}.to_local()")


def _plain(t: torch.Tensor, at: str) -> None:
    """Check that a tensor is neither nested, quantised nor sparse.

    Raises
    ------
    UsageError : the tensor is one of those.
    """
    if t.is_nested:
        raise UsageError(
            f"{at} is a nested tensor, whose shape a plan cannot be made for; pad it to one shape and pass a mask"
        )
    if t.is_quantized:
        raise UsageError(f"{at} is quantised ({t.dtype}) and cannot be trained through; give {at}.dequantize()")
    if "sparse" in str(t.layout):
        raise UsageError(f"{at} is sparse ({t.layout}), whose size a plan cannot count on; give {at}.to_dense()")

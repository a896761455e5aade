"""Records with which arguments a step calls each submodule, by one plain forward of the whole model."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import nn

from ...errors import RekindleError
from ..run.own_forward import forward_instead
from ..run.sample import copies, owned
from ..situation import module_call as calls
from ..situation.module_call import Key, ModuleCall
from ..situation.values import key_of
from ..tensors.lock import LOCK
from ..tensors.sharded import Whole, any_fully_sharded, is_fully_sharded, made_whole, sharded_again
from ..trace import module_kinds, plain_forward
from .as_before import as_before, nothing_saved
from .measured_step import Subject

OTHER_DRAWS_MOST = 8  # forwards with other random numbers, until one has called every layer. A guess
DEVICES = ("cpu", "cuda")  # kinds for which autocast may be on
HookTables = dict[tuple[str, str], dict[Any, Any]]  # (path, attribute) -> a table that is not empty


@dataclass(frozen=True)
class Recorded:
    """The arguments of one call of a submodule, copied, and the autocast under which it was called.

    key : of the call, as in `ModuleCall.key`. casts : (kind of device, dtype) for each kind under autocast. cached : whether
    autocast keeps its casts. whole : of a model that is sharded, name of each parameter -> how it looks during the call.
    hooks : of the submodules, as in `hooks_in`; code around the call may set them for this call alone.
    """

    call: ModuleCall
    key: Key
    casts: tuple[tuple[str, torch.dtype], ...]
    cached: bool = True
    whole: dict[str, Whole] = field(default_factory=dict)
    hooks: HookTables = field(default_factory=dict)

    @property
    def shapes(self) -> tuple[tuple[int, ...], ...]:
        """The shapes of the tensors."""
        return shapes_of(self.call)

    @contextlib.contextmanager
    def surroundings(self, module: nn.Module) -> Iterator[None]:
        """Inside, autocast and hooks are as they were during the call, and the module's parameters are whole, though with other
        numbers."""
        with made_whole(module, self.whole), _with_hooks(module, self.hooks), contextlib.ExitStack() as stack:
            for kind in DEVICES if self.casts else ():
                dtype = dict(self.casts).get(kind)
                if dtype is not None or torch.is_autocast_enabled(kind):
                    stack.enter_context(torch.autocast(kind, dtype, dtype is not None, self.cached))
            yield


def hooks_in(module: nn.Module) -> HookTables:
    """The tables of hooks of the submodules, copied."""
    return {
        (path, k): dict(x)
        for path, m in module.named_modules() if path
        for k, x in vars(m).items() if "_hooks" in k and isinstance(x, dict) and x
    }  # fmt: skip


@contextlib.contextmanager
def _with_hooks(module: nn.Module, hooks: HookTables) -> Iterator[None]:
    """Inside, the submodules have these hooks."""
    before = hooks_in(module)

    def put(tables: HookTables) -> None:
        for path, k in (*before, *hooks):
            table = vars(module.get_submodule(path))[k]
            table.clear()
            table.update(tables.get((path, k), {}))

    if before == hooks:
        yield
        return
    put(hooks)
    try:
        yield
    finally:
        put(before)


def shapes_of(call: ModuleCall) -> tuple[tuple[int, ...], ...]:
    """The shapes of a call's tensors."""
    return tuple(tuple(t.shape) for t in call.tensors)


@dataclass
class Calls:
    """The calls of one submodule.

    keys : of each call in the step, in order; none where the step leaves the submodule out (LayerDrop).
    samples : key -> the arguments of one such call of this module or of an equal one.
    """

    keys: list[Key] = field(default_factory=list)
    samples: dict[Key, Recorded] = field(default_factory=dict)


def bytes_of(tensors: Iterable[torch.Tensor]) -> int:
    """Bytes of the elements of all tensors."""
    return sum(t.numel() * t.element_size() for t in tensors)


def signature(module: nn.Module) -> Any:
    """Equal for modules of the same classes, shapes and modes."""
    named = [*module.named_parameters(), *module.named_buffers()]
    return (
        type(module),
        module_kinds(module),
        tuple((k, tuple(t.shape), t.stride(), t.dtype, t.device, t.requires_grad) for k, t in named),
        tuple(m.training for m in module.modules()),
    )


def record(s: Subject) -> dict[str, Calls]:
    """path of a submodule -> its calls in one forward of the model on its sample, in order of first calls.

    The forward runs with gradients, as a step does, but nothing is saved for backward. Elements of a list that it leaves out
    (LayerDrop) are taken to be called as an equal one is; if none is equal, further forwards draw other random numbers.
    Afterwards everything is as it was.
    """
    recorder = _Recorder(s, saving=False)
    try:
        recorder.run()
    except _Asked:  # forward itself takes gradients
        recorder = _Recorder(s, saving=True)
        recorder.run()
    for seed in range(OTHER_DRAWS_MOST):
        if not recorder.add_left_out():
            break
        with contextlib.suppress(Exception):
            recorder.run(seed)
    return recorder.found


class _Asked(RekindleError):
    """Forward asked for a tensor that was not saved."""


class _Recorder:
    """Notes the calls of submodules. found : path -> calls."""

    def __init__(self, s: Subject, saving: bool):
        self.s, self.saving = s, saving
        self.found: dict[str, Calls] = {}
        self._known: dict[Any, Recorded] = {}  # (signature, key, hooks) -> the arguments of one such call
        self._own = owned(s.model)
        self._modules = [(name, m, signature(m)) for name, m in parts_of(s.model)]
        self._is_sharded = any_fully_sharded(s.model)

    def add_left_out(self) -> bool:
        """Add elements of lists that were not called, and their submodules, with the samples of an equal element. Gives whether
        some element is left that equals no called one."""
        lists = {
            name: name.rpartition(".")[0] for name, m in self.s.model.named_modules() if isinstance(m, nn.ModuleList)
        }
        running = {name for name, holder in lists.items() if not holder or holder in self.found}
        elements = [(name, kind) for name, _, kind in self._modules if name.rpartition(".")[0] in running]
        like = {kind: name for name, kind in elements if name in self.found}
        left = [(name, kind) for name, kind in elements if name not in self.found]
        for name, kind in left:
            if kind in like:
                self._add_like(name, like[kind])
        return any(kind not in like for _, kind in left)

    def _add_like(self, name: str, called: str) -> None:
        for path, calls_of in list(self.found.items()):
            if path == called or path.startswith(f"{called}."):
                self.found.setdefault(name + path[len(called) :], Calls(samples=dict(calls_of.samples)))

    def run(self, seed: int | None = None) -> None:
        """One forward. seed : of the random numbers that it draws; None: it draws the step's own, and its calls count."""
        instead = [(m, self._recorder(name, m, kind, seed is None)) for name, m, kind in self._modules]
        one_forward(self.s, instead, self.saving, seed)

    def _recorder(self, name: str, module: nn.Module, kind: Any, counts: bool) -> Callable[..., Any]:
        forward = plain_forward(module)

        def recorded(*args: Any, **kwargs: Any) -> Any:
            if torch.compiler.is_dynamo_compiling():  # a branch of torch.cond calls it, and cannot hold a planned part
                return forward(*args, **kwargs)
            if torch.is_grad_enabled() and not LOCK.mine and (counts or name not in self.found):
                with contextlib.suppress(Exception):  # arguments that cannot be taken apart: the module is no part
                    self._note(name, module, kind, calls.bind(forward, args, kwargs), counts)
                    self._note_whole(name, module)
            return forward(*args, **kwargs)

        return recorded

    def _note_whole(self, name: str, module: nn.Module) -> None:
        if self._is_sharded:
            whole = {k: Whole.of(p) for k, p in module.named_parameters(remove_duplicate=False)}
            samples = self.found[name].samples
            samples.update({key: replace(r, whole=whole) for key, r in samples.items() if not r.whole})

    def _note(self, name: str, module: nn.Module, kind: Any, call: ModuleCall, counts: bool) -> None:
        if call.odd or call.used_up:
            return
        key, hooks = call.key, hooks_in(module)
        known = (kind, key, key_of([*hooks.items()]))
        if known not in self._known:
            leaves = [t.detach().requires_grad_(t.requires_grad) if t.is_leaf else t for t in call.tensors]
            self._known[known] = as_recorded(call.on(leaves), key, self._own, hooks)
        calls_of = self.found.setdefault(name, Calls())
        calls_of.samples[key] = self._known[known]
        if counts:
            calls_of.keys.append(key)


def as_recorded(call: ModuleCall, key: Key, own: set[Any], hooks: HookTables | None = None) -> Recorded:
    """The call, made now, with copies of its tensors. own : storages that are not copied."""
    casts = tuple((k, torch.get_autocast_dtype(k)) for k in DEVICES if torch.is_autocast_enabled(k))
    cached = torch.is_autocast_cache_enabled()
    return Recorded(call.on(copies(call.tensors, own)), key, casts, cached, hooks=hooks or {})


def one_forward(
    s: Subject,
    instead: Sequence[tuple[nn.Module, Callable[..., Any]]],
    saving: bool = False,
    seed: int | None = None,
    change: Callable[[list[torch.Tensor]], Any] | None = None,
) -> None:
    """One forward of the model with gradients, after which everything is as it was.

    instead : forwards of submodules. saving : whether tensors are saved for backward. seed : of the random numbers that it
    draws; None: it draws the step's own. change : is given the copied tensors of the sample, and may write to them.
    """
    args, kwargs, tensors = s.sample.fresh()
    if change is not None:
        change(tensors)
    with (
        as_before(s.model, s.sample.objects, fake=s.fake is not None),
        contextlib.ExitStack() as stack,
    ):
        if seed is not None:
            torch.manual_seed(seed)
            np.random.seed(seed)
            random.seed(seed)
        for m, forward in instead:
            stack.enter_context(forward_instead(m, forward))
        if not saving:
            stack.enter_context(nothing_saved(_Asked("a tensor that was not saved is asked for")))
        forward = plain_forward(s.model)
        if is_fully_sharded(s.model):  # hooks make its parameters whole
            stack.enter_context(forward_instead(s.model, forward))
            forward = s.model
        stack.enter_context(sharded_again(s.model))
        forward(*args, **kwargs)


def parts_of(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """(path, submodule) of all that may be a part."""
    return [(name, m) for name, m in model.named_modules() if name and may_be_part(m)]


def may_be_part(module: nn.Module) -> bool:
    """Whether a plan could save anything in the module: a single layer of torch.nn, but for recurrent ones, is one operator,
    and TorchScript runs its modules by itself."""
    if isinstance(module, torch.jit.ScriptModule):
        return False
    if isinstance(module, nn.RNNBase | nn.MultiheadAttention):
        return True
    return bool(list(module.children())) or not type(module).__module__.startswith("torch.nn.")

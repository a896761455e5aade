"""nn.Module + sample -> the joint forward and backward graph of ATen ops.

With `captured`, `eager`, `strides` and `known` it has most of what leans on PyTorch's private surface.
Works on torch 2.11 to 2.13, with real, fake and meta-then-faked parameters.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import operator
import threading
import traceback
import warnings
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._inductor import config as inductor_config
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ... import notices
from ...errors import TraceError
from . import hidden, tree
from .attributes import Attributes, Changes, Kind, kind_of, tensors_as_buffers, tensors_in_attributes
from .captured import Assigned, Captured, read
from .eager import EagerLayout, casts_shared, eager_composites
from .known import KnownValues, Question
from .loss import loss_index
from .module_paths import module_paths_recorded, printable
from .random_state import no_other_random, only_draws
from .rng import cuda_indices
from .side_effects import VARIABLES, SideEffects, is_kept_for_itself
from .strides import eager_strides
from .trace_errors import trace_error
from .values import constants

log = logging.getLogger("rekindle")
disable_autocast = torch._C._DisableAutocast
MOST_TOLD = 2  # kinds of submodules that are told one by one that they are being compiled


class _Flat(nn.Module):
    """The user's module as a function from tensors to tensors; remembers how its result is put together."""

    def __init__(self, model: nn.Module, forward: Any, spec: Any, loss: str, sample: list[torch.Tensor] | None):
        super().__init__()
        self.model = model
        self._sample = sample  # values of the inputs; None: unknown
        self._forward, self._spec, self._loss = forward, spec, loss
        self._casts_cached = torch.is_autocast_cache_enabled()
        self._names: dict[
            int, list[str]
        ] = {}  # of each parameter; while tracing each name stands for a tensor of its own
        for name, p in model.named_parameters(remove_duplicate=False):
            self._names.setdefault(id(p), []).append(name)
        self.output_spec: Any = None
        self.aliased: dict[int, int | str] = {}
        self.ignored: dict[int, str] = {}
        self.assigned: dict[str, Assigned] = {}
        self.kinds: dict[str, Kind] = {}  # of the tensors in `assigned`
        self.changes = Changes()  # of attributes, in the last run
        self.inside: dict[str, torch.Tensor] = {}  # tensors in attributes at the end of the last run
        self.late: list[str] = []  # attributes that backward changed
        self.progress = 0  # ops that were run, in all runs of the last attempt
        self.unseen = 0  # calls of kernels that write to their arguments unseen, in the last run
        self.questions: list[Question] = []  # about the values of inputs, in the last run
        self.filled: list[str] = []  # arguments whose lists or dicts forward changes
        self.goes_on = False  # a run starts with what the one before left in attributes, save tensors

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Without hooks: the user's hooks on all modules are for modules of the user's."""
        return self.forward(*tensors)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = tree.unflatten(list(tensors), self._spec)
        arguments = _by_name(args, kwargs)
        before = _held_by(arguments)
        state, layout, known = Attributes(self.model), EagerLayout(), KnownValues(tensors, self._sample)
        try:
            with self._one_tensor_each():
                leaves = [*self.model.parameters(), *tensors] if self._casts_cached else []
                with casts_shared(leaves), layout, known:
                    found, self.output_spec = tree.flatten(self._forward(*args, **kwargs), opaque_ok=True)
        finally:
            self.unseen, self.questions = layout.unseen, known.questions
            self.progress += known.calls
            self.changes = state.restore(only_tensors=self.goes_on)
            now = _held_by(arguments)
            self.filled = [k for k in before if now[k] != before[k]]
            self.inside = tensors_in_attributes(self.model)
        given: dict[int, int | str] = {
            id(t): k for k, t in [*self.model.named_parameters(), *self.model.named_buffers()]
        }
        given |= {id(t): i for i, t in enumerate(tensors)}
        self.aliased = {k: given[id(t)] for k, t in enumerate(found) if id(t) in given}
        returned = [t for k, t in enumerate(found) if k not in self.aliased]
        places = tree.paths(self.output_spec)
        names = [places[k] for k in range(len(found)) if k not in self.aliased]
        loss = loss_index(returned, names) if self._loss == "auto" else None
        results = len(returned)
        self.assigned = {}
        self.kinds = {k: kind_of(t) for k, t in self.changes.assigned.items()}
        for k, t in sorted(self.changes.assigned.items()):
            self.assigned[k] = Assigned(None, given[id(t)]) if id(t) in given else Assigned(len(returned))
            if id(t) not in given:
                returned.append(t)
                names.append(f"the attribute {k}")
        self.ignored = {}
        for i, t in enumerate(returned):
            if t.requires_grad and self._loss == "auto" and (i >= results or loss is not None and i != loss):
                self.ignored[i] = names[i]
                returned[i] = t.detach()
        # As copies, so that results that are views of each other are no concern of AOTAutograd's; `_read` drops them.
        return tuple([t.clone() for t in returned])

    @contextlib.contextmanager
    def _one_tensor_each(self) -> Iterator[None]:
        """A parameter of several names is one tensor meanwhile, so that its gradients are added up in eager's order."""
        standing = dict(self.model.named_parameters(remove_duplicate=False))
        swapped = []
        for first, *others in self._names.values():
            for name in others:
                path, _, leaf = name.rpartition(".")
                table = self.model.get_submodule(path)._parameters
                swapped.append((table, leaf, table[leaf]))
                table[leaf] = standing[first]  # type: ignore[assignment]
        try:
            yield
        finally:
            for table, leaf, t in reversed(swapped):
                table[leaf] = t


# names that were told, for each model
_warned: weakref.WeakKeyDictionary[nn.Module, set[tuple[str, ...]]] = weakref.WeakKeyDictionary()


def capture(
    model: nn.Module, forward: Any, tensors: list[torch.Tensor], spec: Any, loss: str = "auto", by_values: bool = True
) -> Captured:  # fmt: skip
    """The joint graph of one call of `forward`, the model's own, with `tensors` put together as `spec` says.

    by_values : forward may branch on what integer inputs hold, where they are real; see `Captured.questions`.

    The model's parameters, buffers, attributes and the RNG state are left as they were; so are the Python objects that
    forward and hooks can reach. A RekindleWarning names what forward changes and planned steps do not, once for each model.

    Raises
    ------
    TraceError : the call cannot be captured; the message names the user's source line.
    """
    real = by_values and not any(map(is_fake, tensors))
    flat = _Flat(model, forward, spec, loss, tensors if real else None)
    kinds = {k: kind_of(t) for k, t in tensors_in_attributes(model).items()}
    with SideEffects(model, _by_name(*tree.unflatten([None] * len(tensors), spec))) as effects:
        captured = _capture(flat, tensors)
    if effects.drawn:
        raise TraceError(
            f"forward of {type(model).__name__} draws from a random generator of its own ({', '.join(effects.drawn)}), whose "
            "numbers a plan would fix for good. Draw with torch and decide with torch.where, or draw outside of forward and "
            "pass the numbers in"
        )
    captured.written_places = frozenset(effects.written)
    captured.settles = any(kinds.get(k) != kind for k, kind in flat.kinds.items())
    changed = {*flat.changes.collected, *flat.changes.other, *flat.late}
    by_hooks = {k: names for k in changed if (names := effects.hooks_that_set(k))}
    captured.effects = list(dict.fromkeys([*effects.changed, *itertools.chain(*by_hooks.values())]))
    dropped = {*(changed - by_hooks.keys()), *effects.dropped, *(f"{VARIABLES[2]}{k}" for k in flat.filled)}
    captured.dropped = sorted(k for k in dropped if k.startswith(VARIABLES) or not is_kept_for_itself(model, k))
    _warn_of_dropped(model, tuple(captured.dropped))
    return captured


def _by_name(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by parameter; those without a name by position."""
    return {f"number {i + 1}": x for i, x in enumerate(args)} | kwargs


def _held_by(arguments: dict[str, Any]) -> dict[str, Any]:
    """What the lists, dicts and objects among arguments hold, as keys."""
    found = {}
    for name, x in arguments.items():
        inside, spec = tree.flatten(x)
        found[name] = [id(t) for t in inside], constants(spec)
    return found


def _warn_of_dropped(model: nn.Module, names: tuple[str, ...]) -> None:
    if not names or names in _warned.setdefault(model, set()):
        return
    _warned[model].add(names)
    others = [k for k in names if k.startswith(VARIABLES)]
    attributes = [printable(k) for k in names if k not in others]
    plural = "s" if len(attributes) > 1 else ""
    parts = [f"the attribute{plural} {', '.join(attributes)}"] * bool(attributes) + others
    notices.warn(f"forward of {type(model).__name__} changes {' and '.join(parts)}; planned steps do not")


def _capture(flat: _Flat, tensors: list[torch.Tensor]) -> Captured:
    model = flat.model
    stack = contextlib.ExitStack()
    with stack:
        stack.enter_context(no_other_random())
        stack.enter_context(tensors_as_buffers(model))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_quiet())
        mode = detect_fake_mode([*tensors, *model.parameters()])
        # torch keeps results of shape rules for the whole process. One that another mode made loses which results share a
        # storage, and how large that is: the graph would depend on what was traced before.
        FakeTensorMode.cache_clear()
        if mode is None:
            stack.enter_context(torch.random.fork_rng(devices=cuda_indices([*tensors, *model.parameters()])))
            # Tensors from elsewhere (globals, closures) become constants of the graph.
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            stack.enter_context(tracing(TracingContext(mode)))
        stack.enter_context(eager_strides(mode))
        joint = _joint(stack, flat, tensors)
        _check_stateless(stack, flat, tensors, joint)
        captured = Captured(
            graph_module=joint.graph_module, output_spec=flat.output_spec, aliased_inputs=flat.aliased,
            ignored_outputs=flat.ignored, assigned=flat.assigned, questions=flat.questions,
            changed=(*flat.changes.other, *flat.changes.collected),
        )  # fmt: skip
        read(captured)
    return captured


def _joint(stack: contextlib.ExitStack, flat: _Flat, tensors: list[torch.Tensor]) -> Any:
    """The joint graph, as eager runs it where that can be traced.

    Libraries that look at tensor values, or choose kernels that have no shape rule, do otherwise when they believe they are
    being compiled. Modules of the kinds that failed are told so, and where that is not enough, the whole step is. Whether the
    numbers stay the same is for `verify` to say.
    """
    failed: list[tuple[int, Exception]] = []  # how far each attempt got, and what stopped it
    blocker: Exception | None = None
    told: list[type[nn.Module]] = []  # kinds of submodules
    try:
        while len(told) <= MOST_TOLD:
            try:
                with _as_if_compiling(told):
                    return _with_eager_kernels(stack, flat, tensors)
            except Exception as e:
                failed.append((flat.progress, e))
                kind = _where(e, flat.model)
                if kind is None or kind in told:
                    break
                told.append(kind)
        try:
            with _as_if_compiling(None):
                return _export(stack, flat, tensors, cudnn=False)
        except Exception:
            # The one that got furthest met what blocks; among equals the first, which tells what eager would have met.
            _, blocker = max(failed, key=lambda f: f[0])
            assert blocker is not None
            raise trace_error(blocker, flat.model) from blocker
    finally:
        failed.clear()
        blocker = None  # its traceback holds this frame, and so the model and the tensors


def _where(e: Exception, model: nn.Module) -> type[nn.Module] | None:
    """The kind of the innermost submodule in which it was raised; None: in none."""
    submodules = {id(m): type(m) for m in model.modules() if m is not model}
    assert e.__traceback__ is not None
    below = e.__traceback__.tb_next  # what a frame that still runs tells of itself would hold itself
    frames = [f.f_locals.get("self") for f, _ in traceback.walk_tb(below)]
    return next((submodules[id(m)] for m in reversed(frames) if id(m) in submodules), None)


def _with_eager_kernels(stack: contextlib.ExitStack, flat: _Flat, tensors: list[torch.Tensor]) -> Any:
    """The joint graph, without cuDNN's batch norm only where that is not safe."""
    try:
        joint = _export(stack, flat, tensors)
        if hidden.is_safe(joint.graph_module.graph, flat.unseen):
            return joint
    except Exception:
        if not flat.unseen:  # without it the same would happen
            raise
    return _export(stack, flat, tensors, cudnn=False)


def _check_stateless(stack: contextlib.ExitStack, flat: _Flat, tensors: list[torch.Tensor], joint: Any) -> None:
    """The next call must compute the same, whatever forward left in attributes."""
    changes = flat.changes
    names = sorted({*changes.other, *changes.collected})
    if not names:
        return
    state, questions, late = Attributes(flat.model), flat.questions, flat.late
    flat.goes_on = True
    again = None
    try:
        with contextlib.suppress(TraceError):
            again = _computed(_joint(stack, flat, tensors)), flat.questions
    finally:
        flat.goes_on, flat.questions, flat.changes, flat.late = False, questions, changes, late
        state.restore()
    if again != (_computed(joint), questions):
        raise TraceError(
            f"what forward computes depends on {', '.join(names)}, which it changes itself; a plan is made for one graph. If "
            "only the first call sets it, call the model once before planning. If every call sets it, keep it in a buffer, or "
            "change it outside of forward"
        )


def _computed(joint: Any) -> list[str]:
    """The ops of a graph with their constants, but for which member of a result goes where."""
    nodes = [n for n in joint.graph_module.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    return [f"{n.target}{fx.node.map_arg((n.args, n.kwargs), lambda _: '%')}" for n in nodes]


def _export(stack: contextlib.ExitStack, flat: _Flat, tensors: list[torch.Tensor], cudnn: bool = True) -> Any:
    """cudnn : keep its batch norm, which writes to its arguments unseen (see `hidden`)."""
    state = Attributes(flat.model)
    flat.progress = 0
    try:
        # Backward runs outside of autocast, as it should and mostly does: inside, bias gradients are summed in float32.
        outside = functorch_config.patch(backward_pass_autocast="off")
        # Random ops stay in the graph even where no op reads their numbers: eager's generator moves on.
        all_random = inductor_config.patch(fallback_random=True)
        with module_paths_recorded(flat.model), eager_composites(cudnn), outside, all_random, only_draws():
            return aot_export_joint_with_descriptors(stack, flat, tuple(tensors), {})
    finally:
        # Stand-ins that torch puts in the place of parameters and buffers stay in modules that have two names. All else that is
        # changed now was changed in backward.
        late = state.restore()
        assigned = [k for k, t in late.assigned.items() if flat.inside.get(k) is not t]
        flat.late = [*late.collected, *late.other, *assigned]
        flat.inside = {}


def is_fake(t: torch.Tensor) -> bool:
    """Whether the tensor has no data."""
    return isinstance(t, FakeTensor)


@contextlib.contextmanager
def _as_if_compiling(kinds: Sequence[type[nn.Module]] | None) -> Iterator[None]:
    """The forward of modules of these kinds, and what it calls, is told that it is being compiled; None: everything is."""
    flag = torch.compiler._is_compiling_flag
    before: list[bool] = []

    here = threading.get_ident()  # modules may be called in other threads meanwhile

    def enter(module: nn.Module, args: Any) -> None:
        if threading.get_ident() == here:
            before.append(torch.compiler._is_compiling_flag)
            torch.compiler._is_compiling_flag |= isinstance(module, tuple(kinds or ()))

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        if threading.get_ident() == here:
            torch.compiler._is_compiling_flag = before.pop()

    with contextlib.ExitStack() as hooks:
        if kinds:
            for handle in (
                register_module_forward_pre_hook(enter),
                register_module_forward_hook(leave, always_call=True),
            ):
                hooks.callback(handle.remove)
        try:
            torch.compiler._is_compiling_flag = flag or kinds is None
            yield
        finally:
            torch.compiler._is_compiling_flag = flag


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    logger = logging.getLogger("torch._subclasses.fake_tensor")
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # what fails in a first try is not the user's concern
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="torch")
            yield
    finally:
        logger.setLevel(level)

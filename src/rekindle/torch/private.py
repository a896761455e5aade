"""All private names of torch that this package uses: a new release of torch breaks this file alone.

`tests/torch/test_private_names.py` goes through every name, and says which ones a release took away. Most functions answer
questions that torch's public names do not, and wrap one private name each.
"""

from __future__ import annotations

import contextlib
import functools
import linecache
import sys
import threading
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

import torch
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import descriptors as aot
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, tracing
from torch._inductor import config as inductor_config
from torch._prims_common import make_channels_last_strides_for, make_contiguous_strides_for, suggest_memory_format
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensor,
    FakeTensorMode,
    in_kernel_invocation_manager,
    unset_fake_temporarily,
)
from torch._subclasses.functional_tensor import FunctionalTensor
from torch.autograd import forward_ad
from torch.multiprocessing.reductions import StorageWeakRef
from torch.nn.utils import parametrize
from torch.utils import _pytree as pytree
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map, tree_map_only, tree_unflatten

__all__ = ["DataDependentOutputException", "DeviceContext", "DispatchKey", "DynamicOutputShapeException", "FakeTensor",
           "FakeTensorMode", "FunctionalTensor", "HigherOrderOperator", "OpOverload", "StorageWeakRef", "TorchDispatchMode",
           "TracingContext", "all_op_names", "aot", "aot_export_joint_with_descriptors", "disable_autocast",
           "disable_function_overrides", "disable_modes", "dispatch_key_is_excluded",
           "from_functional_tensor", "function_modes", "function_modes_number", "functorch_config",
           "in_kernel_invocation_manager", "inductor_config", "make_channels_last_strides_for",
           "make_contiguous_strides_for", "pytree", "set_version_counter", "suggest_memory_format", "sync_functional_tensor",
           "tracing", "tree_flatten", "tree_leaves", "tree_map", "tree_map_only", "tree_unflatten", "unset_fake_temporarily",
           "will_run"]  # fmt: skip

Call = TypeVar("Call", bound=Callable[..., Any])

OpOverload = torch._ops.OpOverload  # one op with one signature, such as aten.add.Tensor
HigherOrderOperator = torch._ops.HigherOrderOperator  # an op that takes functions, such as torch.cond
DispatchKey = torch._C.DispatchKey
all_op_names = torch._C._dispatch_get_all_op_names
dispatch_key_is_excluded = torch._C._dispatch_tls_is_dispatch_key_excluded
will_run = torch._C._will_engine_execute_node  # an autograd node, in the backward that is running
disable_autocast = torch._C._DisableAutocast  # context manager: autocast is off for every device
disable_modes = torch.utils._python_dispatch._disable_current_modes  # context manager: no dispatch mode is on
# Context manager: neither modes nor classes change functions.
disable_function_overrides = torch._C.DisableTorchFunction
function_modes = torch.overrides._get_current_function_mode_stack
function_modes_number = torch._C._len_torch_function_stack
from_functional_tensor = torch._from_functional_tensor  # the tensor behind a functional one
sync_functional_tensor = torch._sync  # bring that tensor up to date
set_version_counter = torch._C._autograd._unsafe_set_version_counter
FAKE_TENSOR_LOGGER = "torch._subclasses.fake_tensor"  # name of the logger that tells failed attempts

# The attributes of torch's objects that are used, by a kind of object that has them; `tests/unit/test_house.py` holds the code
# to this list, and `tests/torch/test_private_names.py` looks for each of them.
ATTRIBUTES: dict[str, tuple[str, ...]] = {
    "an operator": ("_dispatch_cache", "_op_dk", "_overloadname", "_overloadpacket", "_schema"),
    "a storage": ("_cdata",),
    "a tensor": ("_is_view", "_version", "_backward_hooks", "_post_accumulate_grad_hooks", "_indices", "_values"),
    "an autograd function": ("_backward_cls",),
    "a node of an autograd function": ("_forward_cls",),
    "a module": ("_parameters", "_buffers", "_modules"),
    "a fake mode": ("_cached_dispatch_impl", "_dispatch_impl"),
    "a library": ("_destroy",),
    "a scripted module": ("_concrete_type",),
    "torch": ("_TorchCompileInductorWrapper",),
}


# -- fake tensors ------------------------------------------------------------------------------------------------------
def is_fake(t: torch.Tensor) -> bool:
    """Whether the tensor has a shape and no data."""
    return isinstance(t, FakeTensor)


def fake_mode_of(tensors: Iterable[Any] = ()) -> FakeTensorMode | None:
    """The FakeTensorMode that is on, or that one of the tensors belongs to; None: there is none."""
    return torch._guards.detect_fake_mode(list(tensors))


def place_of(t: torch.Tensor) -> Any:
    """Where a tensor lies, its shape, its flag and its hooks, as a key; also of a tensor that is traced."""
    moved = isinstance(t, FunctionalTensor) and torch._functionalize_was_storage_changed(t.elem)  # by set_
    at = None if t.layout is not torch.strided else (t.untyped_storage()._cdata, t.stride(), t.storage_offset())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns where the gradient of a result is asked for
        grad = id(t.grad)
    return moved, at, t.shape, t.dtype, t.requires_grad, grad, tuple(t._backward_hooks or ())


def fake_like(mode: FakeTensorMode, elem: torch.Tensor, device: torch.device) -> FakeTensor:
    """A tensor of the mode on `device`, with the shape, strides and storage of `elem`, which is on the meta device."""
    return FakeTensor(mode, elem, device)


# -- autograd ----------------------------------------------------------------------------------------------------------
def backward_number() -> int:
    """The autograd engine's number of the backward call that runs in this thread; -1: none runs."""
    return torch._C._current_graph_task_id()


def sequence_number() -> int:
    """The number that the next autograd node of this thread gets; nodes of forward are numbered in their order."""
    return torch.autograd._get_sequence_nr()


def backward_node_number() -> int:
    """The number of the autograd node whose backward runs in this thread; -1: none runs."""
    node = torch._C._current_autograd_node()
    return -1 if node is None else int(node._sequence_nr())


def backward_keeps_graph() -> bool:
    """Whether the backward call that runs was given retain_graph=True. AOTAutograd asks it the same way."""
    return torch._C._autograd._get_current_graph_task_keep_graph()


def saved_tensors_hooks_are_set() -> bool:
    """Whether default hooks on saved tensors are on, as torch.utils.checkpoint sets them."""
    return torch._C._autograd._top_saved_tensors_default_hooks(True) is not None


def profiler_is_running() -> bool:
    """Whether autograd's profiler records in this thread. torch allows one recording at a time."""
    return torch.autograd._profiler_enabled()


def profiler_runs_elsewhere() -> bool:
    """Whether it records in another thread, such that a second recording would end the process."""
    return torch.autograd.profiler._is_profiler_enabled and not profiler_is_running()


def record_allocations() -> None:
    """Let autograd's profiler record what the CPU's allocator does, and marks of `record_function`, but no operators: in a
    long step those take most of the time."""
    recording = torch.autograd.profiler.profile(profile_memory=True)
    marks = {torch._C._profiler.RecordScope.USER_SCOPE}
    torch._C._autograd._prepare_profiler(recording.config(), recording.kineto_activities)
    torch._C._autograd._enable_profiler(recording.config(), recording.kineto_activities, marks)  # type: ignore[call-arg]


def recorded_allocations() -> list[Any]:
    """End the recording; gives its events."""
    return torch._C._autograd._disable_profiler().events()


def mutations_of(t: torch.Tensor) -> int:
    """How often the tensor has been written to in the trace that runs; 0: no trace stands for it."""
    return torch._functionalize_mutation_counter(t.elem) if isinstance(t, FunctionalTensor) else 0


@contextlib.contextmanager
def checkpoints_run_by(context: Callable[[bool], Any], reentrant: Callable[..., Any]) -> Iterator[None]:
    """Inside, each forward that torch.utils.checkpoint runs is run in `context(preserve)`; preserve : whether backward would
    draw the same random numbers again. With use_reentrant=True, `reentrant` runs it, given the Function's own `apply` and its
    arguments."""
    module, kind = torch.utils.checkpoint, torch.utils.checkpoint.CheckpointFunction
    own, apply = module._checkpoint_without_reentrant_generator, kind.apply

    def generator(function: Any, preserve: bool = True, *args: Any, **kwargs: Any) -> Iterator[Any]:
        with context(preserve):
            yield from own(function, preserve, *args, **kwargs)

    module._checkpoint_without_reentrant_generator = generator  # type: ignore[assignment]
    kind.apply = staticmethod(functools.partial(reentrant, apply))  # type: ignore[method-assign]
    try:
        yield
    finally:
        module._checkpoint_without_reentrant_generator = own
        del kind.apply


# -- other machinery around a call -------------------------------------------------------------------------------------
def in_func_transform() -> bool:
    """Whether the code runs inside a transform of torch.func (vmap, grad, jvp), where tensors stand for others."""
    return torch._C._functorch.peek_interpreter_stack() is not None


def stand_for_many(gradients: Iterable[Any]) -> bool:
    """Whether a batch of gradients is taken at once: vmap runs around, or `is_grads_batched=True` has batched these."""
    batched = torch._C._functorch.is_legacy_batchedtensor
    return in_func_transform() or any(g is not None and batched(g) for g in gradients)


def in_forward_ad() -> bool:
    """Whether the code runs inside torch.autograd.forward_ad.dual_level()."""
    return forward_ad._current_level >= 0


def parametrizations_are_cached() -> bool:
    """Whether the code runs inside torch.nn.utils.parametrize.cached()."""
    return bool(parametrize._cache_enabled)


def told_to_compile() -> bool:
    """Torch's flag that says to libraries that their code is being compiled."""
    return torch.compiler._is_compiling_flag


def tell_to_compile(flag: Any) -> None:
    """Set that flag."""
    torch.compiler._is_compiling_flag = flag


def in_torch_compile() -> bool:
    """Whether torch.compile traces this code, or would compile the functions that it calls."""
    compiling = torch._C._dynamo.eval_frame.get_eval_frame_callback()
    return torch.compiler.is_dynamo_compiling() or callable(compiling)


@contextlib.contextmanager
def no_compiling() -> Iterator[None]:
    """Inside, torch.compile waits in other threads. While torch traces, its state is the whole process's."""
    compiler = sys.modules.get("torch._dynamo.convert_frame")
    with getattr(compiler, "compile_lock", None) or contextlib.nullcontext():
        yield


def opaque_to_compile(call: Call) -> Call:
    """The function, which torch.compile calls as it is: nothing inside of it is compiled. `torch.compiler.disable` does the
    same, but imports the compiler at once and not at the first call."""
    return torch._disable_dynamo(call)  # type: ignore[return-value]


def not_traced_by_compile(call: Call) -> Call:
    """The function, which torch.compile calls as it is; it goes on with the functions that this one calls."""
    return torch._disable_dynamo(call, recursive=False)  # type: ignore[return-value]


def caller() -> types.FrameType:
    """The frame that called the function which calls this one, and which is `opaque_to_compile`."""
    frame = sys._getframe(2)
    while frame.f_globals["__name__"] in ("torch._compile", "torch._dynamo.eval_frame") and frame.f_back is not None:
        frame = frame.f_back
    return frame


def store_of_processes() -> Any:
    """The key-value store that the processes of torch.distributed share; None: this process trains alone."""
    dist = torch.distributed
    if not dist.is_available() or not dist.is_initialized() or dist.get_world_size() < 2:
        return None
    return dist.distributed_c10d._get_default_store()


# -- TorchScript -------------------------------------------------------------------------------------------------------
def script_attributes(module: torch.jit.ScriptModule) -> dict[str, Any]:
    """The attributes of a scripted or traced module, buffers included. They lie in TorchScript, not in its `__dict__`."""
    return {k: getattr(module, k) for k in module._concrete_type.get_attributes()}


class Scripted(Exception):
    """TorchScript ran code through which gradients flow; the text is the name of its method or function."""


@contextlib.contextmanager
def scripted_refused(every: bool = False) -> Iterator[None]:
    """Context manager inside of which TorchScript's code raises `Scripted` in this thread: methods, and functions whose results
    need a gradient, or `every` function. TorchScript optimises code by itself after a few calls: it then has other formulas for
    backward, and kernels that take real tensors alone, so no captured call could stand for the later ones."""
    kinds: tuple[Any, ...] = (torch._C.ScriptMethod, torch._C.ScriptFunction)
    own, here = [k.__call__ for k in kinds], threading.get_ident()

    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        if threading.get_ident() == here:
            raise Scripted(self.name)
        return own[0](self, *args, **kwargs)

    def function(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = own[1](self, *args, **kwargs)
        if threading.get_ident() == here and (
            every or any(getattr(t, "requires_grad", False) for t in tree_leaves(result))
        ):
            raise Scripted(self.name)
        return result

    for kind, call in zip(kinds, (method, function), strict=True):
        kind.__call__ = call
    try:
        with torch.jit.optimized_execution(False):  # its formulas depend on its first calls, and this is none
            yield
    finally:
        for kind, call in zip(kinds, own, strict=True):
            kind.__call__ = call


# -- attention ---------------------------------------------------------------------------------------------------------
def attention_is_fused_here(call: Any) -> bool:
    """Whether PyTorch runs this call of `scaled_dot_product_attention` on the CPU by a fused kernel.

    call : its `query`, `key`, `value`, `attn_mask`, `dropout_p`, `is_causal`, `scale` and `enable_gqa`. The choice depends on
    shapes, types and last strides, so that tensors of a few numbers can stand for them.
    """
    with disable_modes(), torch.no_grad():
        q, k, v = map(_stands_for, (call.query, call.key, call.value))
        mask = None if call.attn_mask is None else _stands_for(call.attn_mask)
        choice = torch._fused_sdp_choice(
            q, k, v, mask, call.dropout_p, call.is_causal, scale=call.scale, enable_gqa=call.enable_gqa
        )
    return choice != torch.nn.attention.SDPBackend.MATH.value


def _stands_for(t: torch.Tensor) -> torch.Tensor:
    """A real tensor of the same shape, type and last stride, all of whose rows lie in the same memory."""
    last = t.stride(-1) if t.dim() else 0
    row = torch.empty(1 + max(0, t.shape[-1] - 1) * last if t.dim() else 1, dtype=t.dtype)
    strides = [0] * (t.dim() - 1) + [last] * bool(t.dim())
    return row.as_strided(t.shape, strides).requires_grad_(t.requires_grad)


@contextlib.contextmanager
def no_source_of_graphs_kept() -> Iterator[None]:
    """Context manager after which the source text of the graph modules that were made inside is gone. torch.fx keeps it for
    tracebacks and never lets go of it: with each captured step the process would grow by some hundred KiB."""
    texts: dict[str, str] = torch.fx.graph_module._loader.eval_cache
    before = set(texts)
    try:
        yield
    finally:
        for name in set(texts) - before:
            texts.pop(name, None)
            linecache.cache.pop(name, None)


def modes_are_on() -> bool:
    """Whether a dispatch mode is on: an instrument, or tensors without data."""
    return torch._C._len_torch_dispatch_stack() > 0


def keeper_of_results() -> str:
    """The surroundings that keep the results of ops, over which planned steps write, in words; "" where there are none."""
    if modes_are_on():
        selective = (torch.utils.checkpoint._CachingTorchDispatchMode, torch.utils.checkpoint._CachedTorchDispatchMode)
        for m in torch.utils._python_dispatch._get_current_dispatch_mode_stack():
            if isinstance(m, selective):
                return "inside torch's selective activation checkpointing"
            if isinstance(m, torch.autograd.graph._CloneArgBeforeMutateMode):
                return "under allow_mutation_on_saved_tensors()"
    return ""


def is_in_use(leaf: torch.Tensor) -> bool:
    """Whether more than Python refers to the tensor: an autograd graph, in most cases."""
    return leaf._use_count() > 1  # type: ignore[attr-defined]


# -- tensors -----------------------------------------------------------------------------------------------------------
def negated_view(t: torch.Tensor) -> torch.Tensor:
    """A view of the tensor with its negative bit flipped."""
    return torch._neg_view(t)


def optimizer_hooks() -> Sequence[dict[int, Any]]:
    """The tables of hooks on the steps of all optimizers; a release of torch may lack them."""
    from torch.optim import optimizer as internals

    names = ("_global_optimizer_pre_hooks", "_global_optimizer_post_hooks")
    return [hooks for k in names if (hooks := getattr(internals, k, None)) is not None]


def step_is_its_own(optimizer: torch.optim.Optimizer) -> bool:
    """Whether the optimizer is one of PyTorch's and steps as PyTorch wrote it. Learning-rate schedulers may take note of it."""
    if type(optimizer).__module__.split(".")[:2] != ["torch", "optim"]:
        return False
    function: Any = getattr(optimizer.step, "__func__", optimizer.step)
    while function is not None:  # each wrapper around it is PyTorch's too, or one of ours that has ended
        module = getattr(function, "__globals__", {}).get("__name__", "")
        if not module.startswith(("torch.optim.", "torch.utils._contextlib", "rekindle.torch.offload.")):
            return False
        function = getattr(function, "__wrapped__", None)
    return True


def step_without_hooks(optimizer: torch.optim.Optimizer, *args: Any, **kwargs: Any) -> Any:
    """One step of an optimizer whose step is its own, without the hooks around it. Schedulers see that it stepped."""
    optimizer._opt_called = True  # type: ignore[attr-defined]
    return type(optimizer).step.__wrapped__(optimizer, *args, **kwargs)  # type: ignore[attr-defined]


def users_of_memory(t: torch.Tensor) -> int:
    """How many tensors use a tensor's memory; two names of one tensor are one."""
    return torch._C._storage_Use_Count(t.untyped_storage()._cdata) - 1

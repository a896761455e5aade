"""Private names of torch.compile, whose import takes a second: each function imports them when it is called."""

from __future__ import annotations

import contextlib
import copy
import functools
import logging
import traceback
import weakref
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import fx
from torch.autograd.grad_mode import _unsafe_preserve_version_counter as version_counters_kept

from ..private import backward_keeps_graph


def compile_graph(
    graph: fx.GraphModule, tensors: Sequence[torch.Tensor], settings: dict[str, Any]
) -> Callable[..., Any]:
    """Compile a graph and its backward by Inductor, for tensors of these shapes.

    settings : name of a setting of Inductor -> its value.
    """
    from torch._guards import TracingContext, tracing
    from torch._inductor.compile_fx import compile_fx
    from torch._subclasses import FakeTensorMode
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    # Without an environment for symbols, Inductor's caches are not used. No size may become a symbol: kernels would be slower.
    fake = FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True)
    inputs = [fake.from_tensor(t, static_shapes=True) for t in tensors]
    with tracing(TracingContext(fake)):
        return compile_fx(copy.deepcopy(graph), inputs, config_patches=settings)  # type: ignore[return-value]


def is_compiled(node: Any) -> bool:
    """Whether an autograd node is what torch.compile has made of a graph."""
    return type(node).__name__ == "CompiledFunctionBackward"


def compiled_node(node: Any) -> Any:
    """The compiled node to which an autograd node belongs: the node itself, or the next one, where the node is a view's.
    None: it belongs to none."""
    return next((n for n in (node, *(n for n, _ in node.next_functions)) if is_compiled(n)), None)


def inductor(settings: dict[str, Any]) -> Callable[..., Any]:
    """The backend of torch.compile, with these settings."""
    return torch._TorchCompileInductorWrapper(None, settings, False)  # type: ignore[no-any-return, attr-defined]


@functools.cache
def _keep_whole_buffers() -> None:
    """Let Inductor's code for CPUs keep no single row in a buffer where its loop takes a tile of rows at once: all but the last
    row of each tile would be lost, as in the gradients of a norm whose input is a transposed view. For the whole process, as
    backward is compiled when it first runs."""
    from torch._inductor.codegen.cpp import OuterLoopFusedSchedulerNode as Fused
    from torch._inductor.virtualized import V

    before = getattr(Fused, "check_outer_fusion_loop_level_attr", None)
    if before is None:  # a torch that decides otherwise; wrong numbers of a part are found and refused in any case
        return

    def check(self: Any, kernels: Any, depth: int) -> bool:
        tiled = any(loop.steps != 1 for k in kernels for loop in k.loop_nest.loops[:depth])
        return not (tiled and V.local_buffer_context.local_buffers) and before(self, kernels, depth)

    Fused.check_outer_fusion_loop_level_attr = check  # type: ignore[method-assign]


class _Mark:
    """A pass that changes no graph: by it, Inductor's caches tell what is compiled here from torch.compile's own code."""

    def __call__(self, graph: fx.Graph) -> None:
        return

    def uuid(self) -> str:
        return "rekindle: tiles keep whole buffers"


def allow_retaining(results: Iterable[torch.Tensor]) -> None:
    """Let the compiled backward of these results run with retain_graph=True. Torch refuses this, since the compiled code writes
    over tensors that forward saved; here these tensors are put back after each such backward."""
    nodes: set[Any] = {t.grad_fn for t in results} - {None}
    for node in nodes | {n for x in nodes if not is_compiled(x) for n, _ in x.next_functions}:  # behind views
        how = node._forward_cls.metadata if is_compiled(node) else None
        if how is not None and (over := vars(how).setdefault("rekindle_written", how.bw_donated_idxs)):
            _put_back(node, how, over)


def _put_back(node: Any, how: Any, over: Sequence[int]) -> None:
    at: Any = weakref.ref(node)  # weak: the node holds its hooks
    afterwards = contextlib.ExitStack()

    def before(_: Any) -> None:
        if backward_keeps_graph():
            saved = [*at().saved_tensors, *getattr(at(), "_tensors_no_vc_check", ())]
            written = tuple([saved[i] for i in over if i < len(saved)])
            afterwards.enter_context(version_counters_kept(written))
            for t in written:
                afterwards.callback(t.copy_, t.clone())
            how.bw_donated_idxs = []  # torch asks whether there are any

    node.register_prehook(before)
    node.register_hook(lambda *_: afterwards.close())


def mode_settings(mode: str | None) -> dict[str, Any]:
    """Inductor's settings that one of torch.compile's modes stands for, and the mark of what is compiled here."""
    from torch._inductor import list_mode_options
    from torch._inductor.custom_graph_pass import CustomGraphPass

    _keep_whole_buffers()
    CustomGraphPass.register(_Mark)
    return {**list_mode_options(mode or "default"), "post_grad_custom_post_pass": _Mark()}


def as_partitioner(kind: type) -> None:
    """Let Inductor take objects of this class as its partitioner."""
    from torch._inductor.custom_graph_pass import CustomPartitionerFn

    CustomPartitionerFn.register(kind)


def min_cut(joint: fx.GraphModule, inputs: Sequence[object], budget: float = 1.0, **kwargs: Any) -> Any:
    """(the graph of forward, the graph of backward) between which the fewest bytes are saved, among the cuts that the policies
    of the nodes allow.

    budget : torch.compile's memory budget, as a share of the bytes that the cut saves at 1. Below 1, backward may draw other
        random numbers than forward did.
    """
    from torch._functorch import config
    from torch._functorch.partitioners import min_cut_rematerialization_partition

    with config.patch(activation_memory_budget=budget):
        return min_cut_rematerialization_partition(joint, inputs, **kwargs)


def while_tracing() -> contextlib.AbstractContextManager[None]:
    """Inside, Dynamo leaves out calls of loggers, and does not split graphs for DistributedDataParallel.

    A call of a logger would end a graph; a plain step has logged by then.
    """
    from torch._dynamo import config

    known = getattr(config, "ignore_logging_functions", None)
    if known is None:
        return config.patch(optimize_ddp=False)  # type: ignore[no-any-return]
    # transformers adds methods, such as warning_once, when it is imported.
    methods = {f for k, f in vars(logging.Logger).items() if callable(f) and not k.startswith("__")}
    changes = {"ignore_logging_functions": {*known, *methods}, "optimize_ddp": False}
    return config.patch(changes)  # type: ignore[no-any-return]


def limit_reached_by(e: BaseException) -> str:
    """The guard of Dynamo that an error says is broken too often: "module.scale == 1.0". "" for any other error."""
    if type(e).__name__ != "FailOnRecompileLimitHit":
        return ""
    why = [f.f_locals.get("recompile_reason") for f, _ in traceback.walk_tb(e.__traceback__)]
    found = next((x for x in why if isinstance(x, str) and ": " in x), "0/0: not known")
    return found.splitlines()[0].partition(": ")[2].partition(" # ")[0].strip()


def is_operator(target: Any) -> bool:
    """Whether a node's target is one of torch's operators."""
    return isinstance(target, torch._ops.OpOverload)

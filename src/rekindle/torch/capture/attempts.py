"""ATTEMPTS"""

from __future__ import annotations

import contextlib
import operator
import traceback
from typing import Any

import torch
from torch import fx, nn
from torch._functorch import config as functorch_config
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._inductor import config as inductor_config

from ...errors import TraceError
from . import hidden_writes
from .attributes import Attributes
from .compiling_flag import as_if_compiling
from .eager_kernels import eager_composites
from .flat import FlatForward
from .module_paths import module_paths_recorded
from .random_state import only_draws
from .trace_errors import trace_error

MOST_TOLD = 2  # kinds of submodules that are told one by one that they are being compiled


def export_joint(stack: contextlib.ExitStack, flat: FlatForward, tensors: list[torch.Tensor]) -> Any:
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
                with as_if_compiling(told):
                    return _with_eager_kernels(stack, flat, tensors)
            except Exception as e:
                failed.append((flat.progress, e))
                kind = _where(e, flat.model)
                if kind is None or kind in told:
                    break
                told.append(kind)
        try:
            with as_if_compiling(None):
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


def _with_eager_kernels(stack: contextlib.ExitStack, flat: FlatForward, tensors: list[torch.Tensor]) -> Any:
    """The joint graph, without cuDNN's batch norm only where that is not safe."""
    try:
        joint = _export(stack, flat, tensors)
        if hidden_writes.is_safe(joint.graph_module.graph, flat.unseen):
            return joint
    except Exception:
        if not flat.unseen:  # without it the same would happen
            raise
    return _export(stack, flat, tensors, cudnn=False)


def check_stateless(stack: contextlib.ExitStack, flat: FlatForward, tensors: list[torch.Tensor], joint: Any) -> None:
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
            again = _computed(export_joint(stack, flat, tensors)), flat.questions
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


def _export(stack: contextlib.ExitStack, flat: FlatForward, tensors: list[torch.Tensor], cudnn: bool = True) -> Any:
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

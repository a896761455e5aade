"""Attempts to trace the joint graph: with eager's code paths where they can be traced, and as if compiling where not."""

from __future__ import annotations

import contextlib
import logging
import operator
import traceback
from typing import Any

import torch
from torch import fx, nn

from ...errors import TraceError, UsageError
from ...printed import listed
from ...saying.frames import in_short
from ..operators import hidden_writes, rules
from ..private import aot_export_joint_with_descriptors, functorch_config, inductor_config, scripted_refused
from ..situation.module_paths import module_paths_recorded, printable
from ..undo.attributes import Attributes
from .compiling_flag import as_if_compiling
from .eager_kernels import OfConstants, eager_composites
from .flat import FlatForward, Inner
from .random_state import only_draws
from .trace_errors import BY_LINE, changed_in_backward, depends_on_itself, functions_refused, trace_error

log = logging.getLogger(__name__)

# Attempts, each of which tells one more class of submodules that torch.compile runs it; after them, one tells all. A guess.
KINDS_MOST = 2
_WRITES = "to have an entirely functional graph"  # torch's words
NAMES_MOST = 2  # of tensors, in a message
# Made once: torch keeps a context variable for each such object, and a thread's context never lets go of a variable.
# Whether backward runs inside of forward's autocast -> how it is traced. PyTorch recommends outside: inside, matrix products in
# formulas of backward are cast too, and bias gradients of a GPU are summed in float32.
_AUTOCAST = [functorch_config.patch(backward_pass_autocast=how) for how in ("off", "same_as_forward")]
# Random ops stay in the graph even if no op reads their numbers: in eager they advance the generator.
_ALL_RANDOM = inductor_config.patch(fallback_random=True)


def export_joint(stack: contextlib.ExitStack, flat: FlatForward, tensors: list[torch.Tensor]) -> Any:
    """The joint graph, with the code paths of eager if they can be traced.

    Some libraries look at tensor values, or choose kernels without a shape rule, unless they believe that they are being
    compiled. Submodule classes in which an attempt failed are told so; if that is not enough, the whole step is. The numbers
    may then differ from eager's; `verify` compares them.

    Raises
    ------
    TraceError : no attempt succeeded; the message names the user's line.
    UsageError : the options make no sense for the results of the model.
    """
    failed: list[tuple[int, Exception]] = []  # how far each attempt got, and what stopped it
    blocker: Exception | None = None
    made: TraceError | None = None
    told: list[type[nn.Module]] = []  # kinds of submodules
    try:
        while len(told) <= KINDS_MOST:
            try:
                with as_if_compiling(told):
                    return _with_eager_kernels(stack, flat, tensors)
            except UsageError:
                raise  # an option that makes no sense for this model, however it is captured
            except Exception as e:
                if isinstance(e, TraceError) and e.reason in BY_LINE:
                    return _export(stack, flat, tensors)  # which finds the line; it fails however it is captured
                if _WRITES in str(e) and not flat.writes_to_constants:
                    flat.writes_to_constants = True
                    continue
                failed.append((flat.progress, e))
                kind = failing_class(e, flat.model)
                if kind is None or kind in told:
                    break
                told.append(kind)
        try:
            with as_if_compiling(None):
                return _export(stack, flat, tensors, cudnn=False)
        except Exception:
            # The attempt that got furthest met the real obstacle; among equals the first, which ran eager's code paths.
            _, blocker = max(failed, key=lambda f: f[0])
            assert blocker is not None
            made = trace_error(blocker, flat.model)
            made.met = None if made is blocker else blocker
            raise made from None
    finally:
        failed.clear()
        made = blocker = None  # its traceback keeps this frame alive, and so the model and the tensors


def failing_class(e: Exception, model: nn.Module) -> type[nn.Module] | None:
    """The class of the innermost submodule in which the error was raised; None: in none."""
    submodules = {id(m): type(m) for m in model.modules() if m is not model}
    assert e.__traceback__ is not None
    below = e.__traceback__.tb_next  # `f_locals` of a frame that still runs would refer to itself
    frames = [f.f_locals.get("self") for f, _ in traceback.walk_tb(below)]
    return next((submodules[id(m)] for m in reversed(frames) if id(m) in submodules), None)


def _with_eager_kernels(stack: contextlib.ExitStack, flat: FlatForward, tensors: list[torch.Tensor]) -> Any:
    """The joint graph, with cuDNN's batch norm as eager calls it if its hidden writes are safe, or can be made plain."""
    try:
        joint = _export(stack, flat, tensors)
    except Exception:
        if not flat.unseen:  # without cuDNN's batch norm the same error would be raised
            raise
        return _export(stack, flat, tensors, cudnn=False)
    if hidden_writes.is_safe(joint.graph_module.graph, flat.unseen):
        return joint
    flat.declares_writes = True
    try:
        return _export(stack, flat, tensors)
    except Exception as e:
        log.debug("batch norms of cuDNN are captured as another kernel: %r", e)
        return _export(stack, flat, tensors, cudnn=False)
    finally:
        flat.declares_writes = False


def check_stateless(stack: contextlib.ExitStack, flat: FlatForward, tensors: list[torch.Tensor], joint: Any) -> None:
    """Check that the next call computes the same, whatever this one left in attributes.

    Raises
    ------
    TraceError : it does not; the message names the attributes.
    """
    changes = flat.changes
    names = sorted({*changes.other, *changes.collected})
    if not names:
        return
    state, questions, late = Attributes(flat.model), flat.questions, flat.late
    flat.goes_on = True
    again = None
    try:
        with contextlib.suppress(TraceError):
            if not changes.gone:  # tensors come back before each run, so that no run would show it
                again = _computed(export_joint(stack, flat, tensors)), flat.questions
    finally:
        flat.goes_on, flat.questions, flat.changes, flat.late = False, questions, changes, late
        state.restore()
    if again != (_computed(joint), questions):
        raise depends_on_itself(flat.model, names)


def _computed(joint: Any) -> list[str]:
    """The ops of a graph with their constants, without the nodes that they read."""
    nodes = [n for n in joint.graph_module.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    return [f"{n.target}{fx.node.map_arg((n.args, n.kwargs), lambda _: '%')}" for n in nodes]


def _export(stack: contextlib.ExitStack, flat: FlatForward, tensors: list[torch.Tensor], cudnn: bool = True) -> Any:
    """One attempt at the joint graph. cudnn : keep cuDNN's batch norm, whose writes are hidden (see `hidden_writes`)."""
    state = Attributes(flat.model)
    flat.progress = 0
    try:
        with (
            module_paths_recorded(flat.model), scripted_refused(), eager_composites(cudnn), _AUTOCAST[flat.inside_autocast],
            _ALL_RANDOM, only_draws(), functions_refused(),
            OfConstants() if flat.writes_to_constants else contextlib.nullcontext(),
        ):  # fmt: skip
            joint = aot_export_joint_with_descriptors(stack, flat, tuple(tensors), {})
        if why := _checkpoint_refusal(flat, joint.graph_module.graph):
            raise why
    finally:
        why = None  # its traceback would keep this frame alive
        # Torch leaves the fake parameters and buffers in modules that have two names. Every other change found now was made in
        # backward.
        late = state.restore()
        assigned = [k for k, t in late.assigned.items() if not any(t is x for x in flat.inside)]
        flat.late = [*late.collected, *late.other, *assigned]
        flat.inside = []
        flat.late_tensors = assigned
        changed, functions = flat.end_backward()
    if changed:
        raise changed_in_backward(changed, functions)
    return joint


# -- checkpoints inside of forward -------------------------------------------------------------------------------------
def _checkpoint_refusal(flat: FlatForward, found: fx.Graph) -> TraceError | None:
    """Why the joint graph does not stand for eager's step, because of torch.utils.checkpoint inside of forward; None: it does.
    A captured backward runs no forward again, so the graph does once what forward does."""
    draws = any(n.op == "call_function" and rules.draws_random(n.target) for n in found.nodes)
    for inner in flat.checkpoints:
        if inner.written:
            names = [*map(printable, inner.written)]
            first, every = ", ".join(names[:NAMES_MOST]), listed(names, NAMES_MOST)
            why = (
                f"so each step writes to {every} twice: in forward, and where backward runs it again. A plan would once"
            )
            effect = f", which writes to {first} again in backward"
            return _checkpoint_error(inner, "", effect, why, "; each step then writes once")
        if draws and not inner.preserves:
            why = "so backward draws other random numbers than forward. A plan draws the same"
            how, instead = "with preserve_rng_state=False", ", or give preserve_rng_state=True"
            return _checkpoint_error(inner, how, "", why, instead)
    return None


def _checkpoint_error(inner: Inner, how: str, effect: str, why: str, instead: str) -> TraceError:
    called = f"torch.utils.checkpoint {how}".rstrip()
    return TraceError(
        f"forward runs {called} at {inner.line or 'an unknown line'}, and {why}. Switch that checkpointing off "
        "(use_checkpoint=False, memory_efficient=False, gradient_checkpointing_disable() or the like), since Rekindle itself "
        f"decides what runs again{instead}",
        reason=f"runs {called}{effect}", line=in_short(inner.line),
    )  # fmt: skip

"""Captures one call of a module as a joint forward and backward graph of ATen ops.

It works on torch 2.11 to 2.13, with real parameters, fake ones, and ones made on the meta device and then faked.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
import warnings
import weakref
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ...ask import TraceOptions
from ...errors import TraceError
from ...printed import LISTED_MOST, listed
from ...saying import notices
from ..operators.eager_strides import eager_strides
from ..private import (
    FAKE_TENSOR_LOGGER,
    FakeTensorMode,
    TracingContext,
    fake_mode_of,
    is_fake,
    no_source_of_graphs_kept,
    tracing,
)
from ..situation.callables import holds_traced
from ..situation.module_paths import printable
from ..situation.numbers import Numbers
from ..tensors import tree
from ..undo.attributes import kind_of, tensors_as_buffers, tensors_in_attributes
from ..undo.kept import kept
from ..undo.side_effects import VARIABLES, SideEffects, is_kept_for_itself
from .attempts import check_stateless, export_joint
from .attention import AttentionOfGpu
from .captured import Captured
from .eager_kernels import OUTSIDE
from .flat import FlatForward, by_parameter
from .joint_graph import read_joint_graph
from .later_calls import check_later_calls, written_outside
from .random_state import no_other_random
from .trace_errors import UNKNOWN, changed_in_backward, depends_on_itself

log = logging.getLogger("rekindle")
USUAL = TraceOptions()

# names that a warning has told, for each model
_warned: weakref.WeakKeyDictionary[nn.Module, set[tuple[str, ...]]] = weakref.WeakKeyDictionary()


def capture(
    model: nn.Module,
    forward: Any,
    tensors: list[torch.Tensor],
    spec: Any,
    options: TraceOptions = USUAL,
    by_values: bool = True,
    numbers: Numbers | None = None,
    capability: tuple[int, int] | None = None,
) -> Captured:
    """The joint graph of one call of `forward`, the model's own, on `tensors` in the structure `spec`.

    options : the results that gradients come back to, and those that the joint graph leaves out (`loss`, `unused`).
    by_values : forward may branch on the values of inputs and buffers if they are real; see `Captured.questions`.
    numbers : the numbers in `spec` and in attributes that are inputs of the graph.
    capability : compute capability of the GPU whose attention is captured in place of the CPU's; see `attention`.

    The model's parameters, buffers, attributes and the random state stay as they were; so do the Python objects that forward
    and hooks can reach. A RekindleWarning, once for each model, names the state that forward changes and planned steps do not.

    Raises
    ------
    TraceError : the call cannot be captured; the message names the user's source line.
    UsageError : `options.unused` leaves out the loss, or every result that requires grad.
    """
    real = by_values and not any(map(is_fake, tensors))
    flat = FlatForward(model, forward, spec, options, tensors, real, numbers)
    kinds = {k: kind_of(t) for k, t in tensors_in_attributes(model).items()}
    given = by_parameter(*tree.unflatten([None] * len(tensors), spec))
    fake = fake_mode_of([*tensors, *model.parameters()]) is not None
    with kept(model, given, captures=True, fake=fake) as before:
        try:
            captured = _capture(
                flat, tensors, before.effects, None if capability is None else AttentionOfGpu(capability)
            )
        except TraceError as e:  # one run of forward met a tensor that another had left
            left = [name for name, w in before.effects.changed_now() if holds_traced([w.read()])]
            if left and e.reason.endswith(UNKNOWN):
                raise depends_on_itself(model, left) from None
            raise
    effects = before.effects
    if effects.drawn:
        raise TraceError(
            f"forward of {type(model).__name__} draws from a random generator of its own ({', '.join(effects.drawn)}), whose "
            "numbers would be constants of the plan. Draw with torch and decide with torch.where, or draw outside of forward "
            "and pass the numbers in",
            reason="draws from a random generator of its own",
        )
    changed = {*flat.changes.collected, *flat.changes.other, *flat.late}
    by_hooks = {k: names for k in changed if (names := effects.hooks_that_set(k))}
    if late := flat.late_tensors:
        raise changed_in_backward(late, [name for k in late for name in by_hooks.get(k, ())])
    every = {*(changed - by_hooks.keys()), *effects.dropped}
    dropped = sorted(k for k in every if k.startswith(VARIABLES) or not is_kept_for_itself(model, k))
    _warn_of_dropped(model, tuple(dropped))
    return replace(
        captured,
        settles=flat.cached or any(kinds.get(k) != kind for k, kind in flat.kinds.items()),
        effects=list((Counter(effects.changed) | Counter(itertools.chain(*by_hooks.values()))).elements()),
        dropped=dropped,
        written_places=frozenset(effects.written),
        numbers=numbers or Numbers(),
        in_backward=flat.in_backward,
        held=flat.held,
        handed=flat.handed,
    )


def _warn_of_dropped(model: nn.Module, names: tuple[str, ...]) -> None:
    """Warn that planned steps do not change these, once for each model and set of names."""
    if not names or names in _warned.setdefault(model, set()):
        return
    _warned[model].add(names)
    others = [k for k in names if k.startswith(VARIABLES)]
    attributes = [printable(k) for k in names if k not in others]
    plural = "s" if len(attributes) > 1 else ""
    parts = [f"the attribute{plural} {listed(attributes)}"] * bool(attributes) + others[:LISTED_MOST]
    parts += [f"{len(others) - LISTED_MOST} more"] * (len(others) > LISTED_MOST)
    notices.warn(f"forward of {type(model).__name__} changes {' and '.join(parts)}; planned steps do not")


def _capture(
    flat: FlatForward, tensors: list[torch.Tensor], effects: SideEffects, attention: AttentionOfGpu | None
) -> Captured:
    """The capture itself, in a prepared environment: fake tensors, gradients on, no other random generators."""
    model = flat.model
    stack = contextlib.ExitStack()
    with stack:
        stack.enter_context(no_source_of_graphs_kept())
        stack.enter_context(no_other_random())
        stack.enter_context(tensors_as_buffers(model))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(quiet())
        mode = fake_mode_of([*tensors, *model.parameters()])
        # Torch caches the results of shape rules for the whole process. A result that another mode cached no longer says which
        # outputs share a storage, nor its size: the graph would depend on earlier traces.
        FakeTensorMode.cache_clear()
        if mode is None:
            # Tensors from elsewhere (globals, closures) become constants of the graph.
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            stack.enter_context(tracing(TracingContext(mode)))
            # The mode lives on in the graph, and a tensor to which a weak reference leads cannot be swapped (swap_tensors).
            stack.callback(mode.fake_tensor_converter.meta_converter.describer.lookup_tensor.clear)
        stack.enter_context(eager_strides(mode))
        if attention is not None:
            stack.enter_context(attention)
        try:
            joint = export_joint(stack, flat, tensors)
        except TraceError as e:
            if not e.reason.endswith(UNKNOWN) or not (outside := written_outside(flat, tensors, mode)):
                raise
            for i, t in enumerate(outside):
                flat.outside[f"{OUTSIDE}{i}"] = model._buffers[f"{OUTSIDE}{i}"] = t
                stack.callback(model._buffers.pop, f"{OUTSIDE}{i}", None)
            joint = export_joint(stack, flat, tensors)
        check_stateless(stack, flat, tensors, joint)
        check_later_calls(flat, tensors, mode, effects)
        known = Captured(
            graph_module=joint.graph_module, output_spec=flat.output_spec, aliased_inputs=flat.aliased,
            ignored_outputs=flat.ignored, assigned=flat.assigned, questions=flat.questions, no_results=flat.no_results,
            goes_on=frozenset(flat.inner), retained=flat.retained, fills=flat.fills,
            changed=(*flat.changes.other, *flat.changes.collected), cast=flat.cast,
            elsewhere=() if attention is None else tuple(sorted(attention.replaced)),
        )  # fmt: skip
        return read_joint_graph(known, model)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Silence torch's own warnings and logged errors while capturing."""
    logger = logging.getLogger(FAKE_TENSOR_LOGGER)
    level = logger.level
    logger.setLevel(logging.CRITICAL)  # torch logs errors of attempts that a later attempt makes good
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", category=UserWarning, module="torch")
            # Parameters are leaves.
            warnings.filterwarnings("ignore", "The .grad attribute of a Tensor that is not a leaf")
            yield
    finally:
        logger.setLevel(level)

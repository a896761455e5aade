"""module + sample -> Trace: the Graph of one training step, costed, with the way back to the module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from ..errors import TraceError, UsageError
from ..graph import Graph
from . import capture as cap
from . import opaque, tree
from .attributes import plain_tensors
from .captured import Captured
from .costs import node_costs
from .duplicates import merge_duplicates
from .in_place import write_in_place
from .normalise import Lowered, is_marked, lower, storage_bytes
from .optimizers import state_bytes

Key = tuple[Any, ...]


@dataclass(frozen=True)
class Trace:
    """One call of a module, captured: `graph` is the step, without torch.

    signature : what the call looked like; another signature is another graph.
    module_name : class of the module.
    module_kinds : (qualified name, class) of it and all its submodules.
    fake : whether it was made from fake tensors, so that nothing could be measured.
    loss, target, must_save : as given to `trace`.
    """

    graph: Graph
    lowered: Lowered
    signature: Key
    module_name: str
    fake: bool
    loss: str = "auto"
    target: str | None = None
    must_save: tuple[str, ...] = ()
    module_kinds: tuple[tuple[str, str], ...] = ()

    def __repr__(self) -> str:
        return f"Trace({self.module_name}, {self.graph!r})"

    def costed(self, target: str | None = None, progress: Callable[[str], None] | None = None) -> Trace:
        """The same trace with each op's seconds, FLOPs and workspace: measured on the device at hand, or the
        roofline of `target`; modelled wherever an op cannot run here (fake tensors, a device that is absent)."""
        graph = _costed(self.lowered, self.fake, target, progress)
        return replace(self, graph=graph, lowered=replace(self.lowered, graph=graph), target=target)


def trace(
    model: nn.Module,
    sample: Any,
    *,
    loss: str = "auto",
    target: str | None = None,
    optimizer: torch.optim.Optimizer | type | str | None = None,
    must_save: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
) -> Trace:
    """Capture one training step of `model` called with `sample`.

    Parameters
    ----------
    sample : a tensor, a tuple of positional arguments, or a mapping of keyword arguments. Shapes, dtypes, devices and
        constants matter, and where forward branches on what integer inputs hold (whether a mask masks anything), their
        values. Fake tensors serve as well: there a library that knows of tracing takes the branch that is right for all.
    loss : "auto": where the result holds a scalar under the key `loss`, or a scalar comes first, gradients come back to
        it alone; else to every result that requires grad. "all": to every one.
    target : name of a device whose roofline gives the seconds, instead of measuring on the device at hand.
    optimizer : a torch optimizer, its class or a name such as "adamw": its state counts among what is held during the
        whole step, also before the first step has made it.
    must_save : names of submodules, or patterns such as "blocks.*.router", whose ops must never run again (a routing
        decision that recomputation could flip, say); what backward needs of them is kept.

    Raises
    ------
    TraceError : the call cannot be captured; the message names the source line and the remedy.
    """
    return trace_call(
        model, *call_arguments(sample), loss=loss, target=target, optimizer=optimizer, must_save=must_save,
        progress=progress,
    )  # fmt: skip


def trace_call(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    loss: str = "auto",
    target: str | None = None,
    optimizer: torch.optim.Optimizer | type | str | None = None,
    must_save: Sequence[str] = (),
    progress: Callable[[str], None] | None = None,
    by_values: bool = True,
) -> Trace:
    """`trace` of the call `model(*args, **kwargs)`. Without `by_values` inputs have none that forward could branch on."""
    if loss not in ("auto", "all"):
        raise UsageError(f"loss={loss!r} is unknown; choose 'auto' or 'all'")
    tensors, spec = tree.flatten((args, dict(kwargs)))
    forward = plain_forward(model)
    captured = cap.capture(model, forward, tensors, spec, loss, by_values)
    fake = any(cap.is_fake(t) for t in [*tensors, *model.parameters()])
    if not fake:
        opaque.learn_sizes(captured)
    for p in captured.mutations:
        t = tensors[captured.inputs[p]] if p in captured.inputs else None
        if t is not None and t.requires_grad:
            raise TraceError("the model writes over an input that requires grad; clone the input before it is changed")
    state = 0 if optimizer is None else state_bytes(optimizer, model)
    merge_duplicates(captured, lambda n: is_marked(captured.module_path.get(n, ""), must_save))
    write_in_place(captured)
    name = type(model).__name__
    held = [*captured.constants.values(), *(t for *_, t in plain_tensors(model))]
    resident = resident_bytes(model, tensors, held) + _newly_held(model, captured) + state
    lowered = lower(captured, name, resident, must_save)
    key = signature(model, tensors, spec)
    return Trace(lowered.graph, lowered, key, name, fake, loss, target, tuple(must_save), module_kinds(model)).costed(
        target, progress
    )


def _newly_held(model: nn.Module, captured: Captured) -> int:
    """Bytes by which what forward sets attributes to exceeds what they held before."""
    old = dict(model.named_buffers()) | {name: t for name, _, _, t in plain_tensors(model)}
    new = {k: captured.outputs[a.output].meta["val"] for k, a in captured.assigned.items() if a.output is not None}
    return sum(max(0, storage_bytes(t) - (storage_bytes(old[k]) if k in old else 0)) for k, t in new.items())


def _costed(lowered: Lowered, fake: bool, target: str | None, progress: Callable[[str], None] | None) -> Graph:
    graph = lowered.graph
    at = [i for i, c in enumerate(lowered.calls) if c.kind == "aten"]
    nodes = [n for i in at if (n := lowered.calls[i].node) is not None]
    costs = node_costs(nodes, target=target, measure=False if fake else None, progress=progress)
    ops = list(graph.ops)
    for i, c in zip(at, costs, strict=True):
        ops[i] = replace(ops[i], seconds=c.seconds, flops=c.flops, workspace=c.workspace)
    return replace(graph, ops=tuple(ops))


def call_arguments(sample: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """(args, kwargs) of the call that a sample stands for."""
    if isinstance(sample, torch.Tensor):
        return (sample,), {}
    if isinstance(sample, Mapping):
        return (), {k: sample[k] for k in sample}
    if isinstance(sample, tuple | list):
        return tuple(sample), {}
    raise UsageError(
        f"sample is a {type(sample).__name__}; give a tensor, a tuple of positional arguments or a dict of keyword ones"
    )


def module_kinds(model: nn.Module) -> tuple[tuple[str, str], ...]:
    """(qualified name, class) of a module and all its submodules."""
    return tuple((name, type(m).__name__) for name, m in model.named_modules())


def plain_forward(model: nn.Module) -> Callable[..., Any]:
    """The module's own forward, also where it is planned already."""
    forward = model.forward
    return getattr(forward, "plain", forward)


def signature(model: nn.Module, tensors: Iterable[torch.Tensor], spec: Any) -> Key:
    """Everything that shapes the graph of a call: shapes, dtypes, devices, what requires grad, constants among the
    arguments, which submodules train, and the autocast state."""
    modules = list(model.modules())
    params = {id(p): p for m in modules for p in m._parameters.values() if p is not None}
    carried = [t for m in modules for t in (*m._buffers.values(), *m.__dict__.values()) if type(t) in _TENSORS]
    return (
        tuple((tuple(t.shape), t.stride(), t.dtype, t.device, t.requires_grad) for t in tensors),
        tree.constants(spec),
        tuple([m.training for m in modules]),
        tuple([(p.shape, p.requires_grad, p.dtype, p.device) for p in [*params.values(), *carried]]),
        _autocast(),
    )


_TENSORS = {torch.Tensor, torch.nn.Buffer, cap.FakeTensor}


def _autocast() -> Key:
    kinds = ["cpu", "cuda"] if torch.cuda.is_available() else ["cpu"]
    on = [k for k in kinds if torch.is_autocast_enabled(k)]
    return tuple((k, torch.get_autocast_dtype(k)) for k in on)


def resident_bytes(model: nn.Module, tensors: Iterable[torch.Tensor], more: Iterable[torch.Tensor] = ()) -> int:
    """Bytes held during the whole step: parameters, buffers, inputs, and a gradient for every trained parameter."""
    params = list(model.parameters())
    seen: dict[Any, int] = {}
    for t in [*params, *model.buffers(), *tensors, *more]:
        s = t.untyped_storage()
        seen[s._cdata] = s.nbytes()
    return sum(seen.values()) + sum(p.numel() * p.element_size() for p in params if p.requires_grad)

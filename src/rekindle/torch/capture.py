"""nn.Module + sample -> the joint forward and backward graph of ATen ops.

The only file that touches PyTorch's private surface: a new torch release breaks one room.
Works on torch 2.11 to 2.13, with real, fake and meta-then-faked parameters.
"""

from __future__ import annotations

import contextlib
import logging
import os
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx.traceback as fx_traceback
from torch import fx, nn
from torch._functorch._aot_autograd import descriptors as aot
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..errors import TraceError
from . import tree

__all__ = ["Captured", "FakeTensor", "capture", "disable_autocast", "is_fake"]

disable_autocast = torch._C._DisableAutocast
_PREFIX = "model."


@dataclass
class Captured:
    """A joint graph, functional: no op writes to its inputs, and what the module mutates comes back as new values.

    nodes : every call_function node in order, forward first.
    params, buffers : placeholder -> qualified name in the module.
    inputs : placeholder -> index of the user's tensor.
    constants : get_attr node -> tensor.
    tangents : placeholder -> index of the output whose gradient it is.
    outputs : node per output tensor of the module, in order of `output_spec`.
    mutations : placeholder -> the node that holds its new value after forward.
    gradients : placeholder -> the node that holds its gradient.
    """

    nodes: list[fx.Node] = field(default_factory=list)
    params: dict[fx.Node, str] = field(default_factory=dict)
    buffers: dict[fx.Node, str] = field(default_factory=dict)
    inputs: dict[fx.Node, int] = field(default_factory=dict)
    constants: dict[fx.Node, torch.Tensor] = field(default_factory=dict)
    tangents: dict[fx.Node, int] = field(default_factory=dict)
    outputs: list[fx.Node] = field(default_factory=list)
    mutations: dict[fx.Node, fx.Node] = field(default_factory=dict)
    gradients: dict[fx.Node, fx.Node] = field(default_factory=dict)
    output_spec: Any = None
    aliased_inputs: dict[int, int] = field(default_factory=dict)  # output leaf -> index of the user's tensor it is
    module_path: dict[fx.Node, str] = field(default_factory=dict)
    ignored_outputs: dict[int, str] = field(default_factory=dict)  # output -> its place; taken as not differentiated
    graph_module: Any = None  # owns the nodes

    @property
    def placeholders(self) -> list[fx.Node]:
        """Everything the caller holds: parameters, buffers, inputs, constants."""
        return [*self.params, *self.buffers, *self.inputs, *self.constants]


class _Flat(nn.Module):
    """The user's module as a function from tensors to tensors; remembers how its result is put together."""

    def __init__(self, model: nn.Module, forward: Any, spec: Any, loss: str):
        super().__init__()
        self.model = model
        self._forward, self._spec, self._loss = forward, spec, loss
        self.output_spec: Any = None
        self.aliased: dict[int, int] = {}
        self.ignored: dict[int, str] = {}

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = tree.unflatten(list(tensors), self._spec)
        found, self.output_spec = tree.flatten(self._forward(*args, **kwargs), opaque_ok=True)
        given = {id(t): i for i, t in enumerate(tensors)}
        self.aliased = {k: given[id(t)] for k, t in enumerate(found) if id(t) in given}
        returned = [t for k, t in enumerate(found) if k not in self.aliased]
        places = tree.paths(self.output_spec)
        names = [places[k] for k in range(len(found)) if k not in self.aliased]
        loss = _loss_index(returned, names) if self._loss == "auto" else None
        self.ignored = {}
        if loss is not None:
            for i, t in enumerate(returned):
                if i != loss and t.requires_grad:
                    self.ignored[i] = names[i]
                    returned[i] = t.detach()
        return tuple(returned)


def _loss_index(tensors: list[torch.Tensor], names: list[str]) -> int | None:
    """Index of the output that is the loss: the one scalar under a key called loss, or a scalar that comes first."""
    scalars = [i for i, t in enumerate(tensors) if t.numel() == 1 and t.requires_grad]
    called = [i for i in scalars if names[i].endswith("['loss']")]
    if len(called) == 1:
        return called[0]
    return 0 if scalars[:1] == [0] and names[0] in ("output", "output[0]") else None


def capture(model: nn.Module, forward: Any, tensors: list[torch.Tensor], spec: Any, loss: str = "auto") -> Captured:
    """The joint graph of one call of `forward`, the model's own, with `tensors` put together as `spec` says.

    The model's parameters, buffers, attributes and the RNG state are left as they were.

    Raises
    ------
    TraceError : the call cannot be captured; the message names the user's source line.
    """
    flat = _Flat(model, forward, spec, loss)
    stack = contextlib.ExitStack()
    with stack:
        stack.enter_context(_attributes_restored(model))
        stack.enter_context(_attributes_as_buffers(model))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_quiet())
        if detect_fake_mode([*tensors, *model.parameters()]) is None:
            stack.enter_context(torch.random.fork_rng(devices=_cuda_devices(tensors, model)))
            # Tensors from elsewhere (globals, closures) become constants of the graph.
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            stack.enter_context(tracing(TracingContext(mode)))
        try:
            joint = _export(stack, flat, tensors)
        except Exception as first:
            # Libraries that look at tensor values, or choose kernels that have no shape rule, do otherwise when they
            # believe they are being compiled. Whether the numbers stay the same is for `verify` to say.
            try:
                with _as_if_compiling():
                    joint = _export(stack, flat, tensors)
            except Exception:
                raise _trace_error(first) from first
        captured = _read(joint.graph_module, flat)
        with joint_fake_mode(joint.graph_module) or contextlib.nullcontext():
            _add_tied(captured, model)
    return captured


_DATA_DEPENDENT = (DataDependentOutputException, GuardOnDataDependentSymNode)


def _export(stack: contextlib.ExitStack, flat: _Flat, tensors: list[torch.Tensor]) -> Any:
    with _module_paths_recorded(flat.model), _eager_composites():
        return aot_export_joint_with_descriptors(stack, flat, tuple(tensors), {})


def _read(gm: fx.GraphModule, flat: _Flat) -> Captured:
    c = Captured(
        graph_module=gm, output_spec=flat.output_spec, aliased_inputs=flat.aliased, ignored_outputs=flat.ignored
    )
    place: dict[Any, fx.Node] = {}
    by_seq: dict[Any, str] = {}  # autograd's sequence number ties a backward op to the forward op it belongs to
    for n in gm.graph.nodes:
        if n.op == "placeholder":
            d = n.meta["desc"]
            place[d] = n
            if isinstance(d, aot.ParamAOTInput):
                c.params[n] = d.target.removeprefix(_PREFIX)
            elif isinstance(d, aot.BufferAOTInput):
                c.buffers[n] = d.target.removeprefix(_PREFIX)
            elif isinstance(d, aot.TangentAOTInput):
                c.tangents[n] = d.output.idx
            elif isinstance(d, aot.PlainAOTInput):
                c.inputs[n] = d.idx
            else:
                raise TraceError(f"the model takes an input of a kind that cannot be planned yet: {d}")
        elif n.op == "get_attr":
            t: Any = gm
            for part in n.target.split("."):
                t = getattr(t, part)
            if not isinstance(t, torch.Tensor):
                raise TraceError(f"the model calls a nested graph ({n.target}), which cannot be planned yet")
            c.constants[n] = t
            n.meta.setdefault("val", t)
        elif n.op == "call_function":
            c.nodes.append(n)
            c.module_path[n] = _module_path(n) or by_seq.get(n.meta.get("seq_nr"), "")
            if c.module_path[n] and not n.meta.get("autograd_backward"):
                by_seq.setdefault(n.meta.get("seq_nr"), c.module_path[n])
        elif n.op == "output":
            outs = list(torch.utils._pytree.tree_leaves(n.args[0], is_leaf=lambda x: x is None))
            for o, d in zip(outs, n.meta["desc"], strict=True):
                if isinstance(d, aot.PlainAOTOutput):
                    c.outputs.append(o)
                elif isinstance(d, aot.InputMutationAOTOutput):
                    c.mutations[place[d.mutated_input]] = o
                elif isinstance(d, aot.GradAOTOutput):
                    if o is not None:
                        c.gradients[place[d.grad_of]] = o
                elif o is not None:
                    raise TraceError(f"the model gives a result of a kind that cannot be planned yet: {d}")
    if not c.tangents:
        raise TraceError(
            "no result of the model depends on a tensor that requires grad, so there is no backward to plan; "
            "call requires_grad_() on what should train, and do not trace under torch.no_grad()"
        )
    return c


def joint_fake_mode(gm: fx.GraphModule) -> FakeTensorMode | None:
    """The mode in which the graph's metas live."""
    return detect_fake_mode([n.meta["val"] for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)])


def _add_tied(c: Captured, model: nn.Module) -> None:
    """One gradient for a parameter that has several names: autograd adds them in the order in which they come, and
    would hold the earlier ones meanwhile, unseen by the plan."""
    position = {n: i for i, n in enumerate(c.nodes)}
    groups: dict[int, list[fx.Node]] = {}
    for p, name in c.params.items():
        if p in c.gradients:
            groups.setdefault(id(model.get_parameter(name)), []).append(p)
    for group in groups.values():
        if len(group) < 2:
            continue
        group.sort(key=lambda p: position.get(c.gradients[p], -1))
        total = c.gradients[group[0]]
        for p in group[1:]:
            g = c.gradients.pop(p)
            with c.graph_module.graph.inserting_before(None):
                new = c.graph_module.graph.call_function(torch.ops.aten.add.Tensor, (total, g))
            new.meta["val"] = torch.ops.aten.add.Tensor(total.meta["val"], g.meta["val"])
            new.meta["partitioner_tag"] = "is_backward"
            c.module_path[new] = c.module_path.get(g, "")
            at = max(c.nodes.index(n) for n in (total, g) if n in position or n in c.nodes)
            c.nodes.insert(at + 1, new)
            total = new
        c.gradients[group[0]] = total


_PATH = "rekindle_module_path"


@contextlib.contextmanager
def _module_paths_recorded(model: nn.Module) -> Iterator[None]:
    """Every node made meanwhile carries the name of the innermost submodule that made it, as its module stack."""
    names = {id(m): name for name, m in model.named_modules()}
    entered: list[str] = [""]

    def note() -> None:
        fx_traceback.current_meta["nn_module_stack"] = {_PATH: (entered[-1], _PATH)}

    def enter(module: nn.Module, args: Any) -> None:
        entered.append(names.get(id(module), entered[-1]))
        note()

    def leave(module: nn.Module, args: Any, result: Any) -> None:
        entered.pop()
        note()

    with fx_traceback.preserve_node_meta():
        before = register_module_forward_pre_hook(enter)
        after = register_module_forward_hook(leave, always_call=True)
        try:
            yield
        finally:
            before.remove()
            after.remove()
            fx_traceback.current_meta.pop("nn_module_stack", None)


def _module_path(n: fx.Node) -> str:
    """Qualified name of the innermost module that made the node, or "". Backward nodes have that of their forward."""
    stack = n.meta.get("nn_module_stack") or n.meta.get("fwd_nn_module_stack") or {}
    return stack[_PATH][0] if _PATH in stack else ""


def is_fake(t: torch.Tensor) -> bool:
    """Whether the tensor has no data."""
    return isinstance(t, FakeTensor)


def fake_mode_of(tensors: list[torch.Tensor]) -> FakeTensorMode | None:
    """The mode of the fake tensors among these, or the ambient one, or None."""
    return detect_fake_mode(tensors)


@contextlib.contextmanager
def _as_if_compiling() -> Iterator[None]:
    before = torch.compiler._is_compiling_flag
    torch.compiler._is_compiling_flag = True
    try:
        yield
    finally:
        torch.compiler._is_compiling_flag = before


# Composite ops for which torch has Python stand-ins that it takes while tracing. They round otherwise than the C++ ones
# that eager calls: other kernels, another order of additions.
_STOOD_IN = ("matmul", "lstm", "gru", "rnn_tanh", "rnn_relu", "upsample_", "_upsample_", "hardshrink", "softshrink",
             "multi_margin_loss", "multilabel_margin_loss_forward")  # fmt: skip


@contextlib.contextmanager
def _eager_composites() -> Iterator[None]:
    """Meanwhile composite ops are taken apart as eager takes them apart."""
    keys = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)
    removed = []
    for name in torch._C._dispatch_get_all_op_names():
        if name.removeprefix("aten::").startswith(_STOOD_IN):
            packet, _, overload = name.removeprefix("aten::").partition(".")
            op = getattr(getattr(torch.ops.aten, packet), overload or "default")
            removed += [(op, k, op.py_kernels.pop(k)) for k in keys if k in op.py_kernels]
            op._dispatch_cache.clear()
    try:
        yield
    finally:
        for op, k, kernel in removed:
            op.py_kernels[k] = kernel
            op._dispatch_cache.clear()


@contextlib.contextmanager
def _attributes_restored(model: nn.Module) -> Iterator[None]:
    """Undo what forward leaves on the modules while it is traced: counters, cached (fake) tensors."""
    kept = [(m, dict(m.__dict__)) for m in model.modules()]
    try:
        yield
    finally:
        for m, attributes in kept:
            for k in m.__dict__.keys() - attributes.keys():
                del m.__dict__[k]
            m.__dict__.update(attributes)


@contextlib.contextmanager
def _attributes_as_buffers(model: nn.Module) -> Iterator[None]:
    """Tensors that are plain attributes of a module are inputs of the graph too, read anew at each call."""
    moved = [
        (m, k, t) for m in model.modules() for k, t in m.__dict__.items()
        if isinstance(t, torch.Tensor) and k.isidentifier()
    ]  # fmt: skip
    for m, k, t in moved:
        del m.__dict__[k]
        m._buffers[k] = t
    try:
        yield
    finally:
        for m, k, t in moved:
            m._buffers.pop(k, None)
            m.__dict__[k] = t


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


def _cuda_devices(tensors: list[torch.Tensor], model: nn.Module) -> list[int]:
    found = {t.device for t in [*tensors, *model.parameters()] if t.device.type == "cuda"}
    return sorted(d.index or 0 for d in found)


def _trace_error(e: BaseException) -> TraceError:
    if isinstance(e, TraceError):
        return e
    here = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    torch_dir = os.path.dirname(os.path.abspath(torch.__file__))
    line = next(
        (f for f in reversed(traceback.extract_tb(e.__traceback__))
         if not os.path.abspath(f.filename).startswith((here, torch_dir)) and not f.filename.startswith("<")
         and f"contextlib.py" not in f.filename),
        None,
    )  # fmt: skip
    where = f'{line.filename}:{line.lineno}, in {line.name}: "{line.line}"' if line else "an unknown line"
    if isinstance(e, _DATA_DEPENDENT) or "data-dependent" in str(e).lower():
        return TraceError(
            f"the model's control flow or shapes depend on tensor values at {where}. A plan is made for one graph, "
            "whatever the data. Take the decision outside of forward, or write it with torch.where or a mask; or plan "
            "the submodules before and after that line"
        )
    text = str(e).strip().splitlines()
    return TraceError(
        f"the model cannot be captured: {type(e).__name__} at {where}: {text[0] if text else ''}. "
        "Check that the call works with this sample; plan the submodules around that line if it must stay"
    )

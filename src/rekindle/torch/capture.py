"""nn.Module + sample -> the joint forward and backward graph of ATen ops.

With `eager` and `known` it alone touches PyTorch's private surface: a new torch release breaks one room.
Works on torch 2.11 to 2.13, with real, fake and meta-then-faked parameters.
"""

from __future__ import annotations

import contextlib
import logging
import operator
import os
import random
import traceback
import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.fx.traceback as fx_traceback
from torch import fx, nn
from torch._functorch import config as functorch_config
from torch._functorch._aot_autograd import descriptors as aot
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._guards import TracingContext, detect_fake_mode, tracing
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensor, FakeTensorMode
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook

from ..errors import TraceError
from . import hidden, tree
from .attributes import Attributes, Changes, tensors_as_buffers
from .eager import EagerLayout, casts_shared, eager_composites
from .known import KnownValues, Question

__all__ = ["Captured", "FakeTensor", "capture", "disable_autocast", "is_fake"]

log = logging.getLogger("rekindle")
disable_autocast = torch._C._DisableAutocast
_PREFIX = "model."


class Assigned(NamedTuple):
    """output : index among the outputs, or None; then source : the user's tensor by index, or a parameter or buffer."""

    output: int | None
    source: int | str = ""


class Writing(NamedTuple):
    """A call that gives what another op does, and writes what the module mutates. args : as of a node."""

    target: Any
    args: tuple[Any, ...]


@dataclass
class Captured:
    """A joint graph, functional: no op writes to its inputs, and what the module mutates comes back as new values, save
    what `writing` says (see `in_place`).

    nodes : every call_function node in order, forward first.
    params, buffers : placeholder -> qualified name in the module.
    inputs : placeholder -> index of the user's tensor.
    constants : get_attr node -> tensor.
    tangents : placeholder -> index of the output whose gradient it is.
    outputs : node per output tensor of the module, in order of `output_spec`.
    mutations : placeholder -> the node that holds its new value after forward.
    writing : node -> what its first run calls instead; then nothing of what it writes is among `mutations`.
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
    writing: dict[fx.Node, Writing] = field(default_factory=dict)
    gradients: dict[fx.Node, fx.Node] = field(default_factory=dict)
    output_spec: Any = None
    # output leaf -> the user's tensor that it is, by index, or the parameter or buffer, by name
    aliased_inputs: dict[int, int | str] = field(default_factory=dict)
    module_path: dict[fx.Node, str] = field(default_factory=dict)
    ignored_outputs: dict[int, str] = field(default_factory=dict)  # output -> its place; taken as not differentiated
    # attribute that forward sets to another tensor -> the output that it is, counted behind those of `output_spec`, or
    # what it is as in `aliased_inputs`
    assigned: dict[str, Assigned] = field(default_factory=dict)
    questions: list[Question] = field(default_factory=list)  # that forward asked about the values of inputs
    graph_module: Any = None  # owns the nodes

    @property
    def placeholders(self) -> list[fx.Node]:
        """Everything the caller holds: parameters, buffers, inputs, constants."""
        return [*self.params, *self.buffers, *self.inputs, *self.constants]


class _Flat(nn.Module):
    """The user's module as a function from tensors to tensors; remembers how its result is put together."""

    def __init__(self, model: nn.Module, forward: Any, spec: Any, loss: str, sample: list[torch.Tensor] | None):
        super().__init__()
        self.model = model
        self._sample = sample  # values of the inputs; None: unknown
        self._forward, self._spec, self._loss = forward, spec, loss
        self._casts_cached = torch.is_autocast_cache_enabled()
        self.output_spec: Any = None
        self.aliased: dict[int, int | str] = {}
        self.ignored: dict[int, str] = {}
        self.assigned: dict[str, Assigned] = {}
        self.changes = Changes()  # of attributes, in the last run
        self.unseen = 0  # calls of kernels that write to their arguments unseen, in the last run
        self.questions: list[Question] = []  # about the values of inputs, in the last run
        self.goes_on = False  # a run starts with what the one before left in attributes, save tensors

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = tree.unflatten(list(tensors), self._spec)
        state, layout, known = Attributes(self.model), EagerLayout(), KnownValues(tensors, self._sample)
        casts = casts_shared([*self.model.parameters(), *tensors] if self._casts_cached else [])
        try:
            with casts, layout, known:
                found, self.output_spec = tree.flatten(self._forward(*args, **kwargs), opaque_ok=True)
        finally:
            self.unseen, self.questions = layout.unseen, known.questions
            self.changes = state.restore(only_tensors=self.goes_on)
        given: dict[int, int | str] = {
            id(t): k for k, t in [*self.model.named_parameters(), *self.model.named_buffers()]
        }
        given |= {id(t): i for i, t in enumerate(tensors)}
        self.aliased = {k: given[id(t)] for k, t in enumerate(found) if id(t) in given}
        returned = [t for k, t in enumerate(found) if k not in self.aliased]
        places = tree.paths(self.output_spec)
        names = [places[k] for k in range(len(found)) if k not in self.aliased]
        loss = _loss_index(returned, names) if self._loss == "auto" else None
        results = len(returned)
        self.assigned = {}
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


def _loss_index(tensors: list[torch.Tensor], names: list[str]) -> int | None:
    """Index of the output that is the loss: the one scalar under a key called loss, or a scalar that comes first."""
    scalars = [i for i, t in enumerate(tensors) if t.numel() == 1 and t.requires_grad]
    called = [i for i in scalars if names[i].endswith("['loss']")]
    if len(called) == 1:
        return called[0]
    return 0 if scalars[:1] == [0] and names[0] in ("output", "output[0]") else None


def capture(
    model: nn.Module, forward: Any, tensors: list[torch.Tensor], spec: Any, loss: str = "auto", by_values: bool = True
) -> Captured:  # fmt: skip
    """The joint graph of one call of `forward`, the model's own, with `tensors` put together as `spec` says.

    by_values : forward may branch on what integer inputs hold, where they are real; see `Captured.questions`.

    The model's parameters, buffers, attributes and the RNG state are left as they were.

    Raises
    ------
    TraceError : the call cannot be captured; the message names the user's source line.
    """
    real = by_values and not any(map(is_fake, tensors))
    flat = _Flat(model, forward, spec, loss, tensors if real else None)
    stack = contextlib.ExitStack()
    with stack:
        stack.enter_context(_no_other_random())
        stack.enter_context(tensors_as_buffers(model))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(_quiet())
        if detect_fake_mode([*tensors, *model.parameters()]) is None:
            stack.enter_context(torch.random.fork_rng(devices=_cuda_devices(tensors, model)))
            # Tensors from elsewhere (globals, closures) become constants of the graph.
            mode = FakeTensorMode(allow_non_fake_inputs=True)
            stack.enter_context(tracing(TracingContext(mode)))
        joint = _joint(stack, flat, tensors)
        _check_stateless(stack, flat, tensors, joint)
        captured = _read(joint.graph_module, flat)
        with joint_fake_mode(joint.graph_module) or contextlib.nullcontext():
            _add_tied(captured, model)
    return captured


_DATA_DEPENDENT = (DataDependentOutputException, GuardOnDataDependentSymNode)


def _joint(stack: contextlib.ExitStack, flat: _Flat, tensors: list[torch.Tensor]) -> Any:
    try:
        return _with_eager_kernels(stack, flat, tensors)
    except Exception as first:
        # Libraries that look at tensor values, or choose kernels that have no shape rule, do otherwise when they
        # believe they are being compiled. Whether the numbers stay the same is for `verify` to say.
        try:
            with _as_if_compiling():
                return _export(stack, flat, tensors, cudnn=False)
        except Exception:  # the first one tells what eager would have met
            raise _trace_error(first) from first


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
    """What forward leaves in attributes must not change what the next call computes."""
    changes = flat.changes
    if changes.collected:
        log.warning(
            "forward of %s puts tensors into %s; planned calls do not",
            type(flat.model).__name__,
            ", ".join(changes.collected),
        )
    if not changes.other:
        return
    state, questions = Attributes(flat.model), flat.questions
    flat.goes_on = True
    again = None
    try:
        with contextlib.suppress(TraceError):
            again = _computed(_joint(stack, flat, tensors)), flat.questions
    finally:
        flat.goes_on, flat.questions = False, questions
        state.restore()
    if again != (_computed(joint), questions):
        raise TraceError(
            f"what forward computes depends on {', '.join(sorted(changes.other))}, which it changes itself; a plan is made for "
            "one graph. Call the model once before if that is set at the first call alone; else keep it in a buffer, or "
            "change it outside of forward"
        )


def _computed(joint: Any) -> list[str]:
    """The ops of a graph with their constants, but for which member of a result goes where."""
    nodes = [n for n in joint.graph_module.graph.nodes if n.op == "call_function" and n.target is not operator.getitem]
    return [f"{n.target}{fx.node.map_arg((n.args, n.kwargs), lambda _: '%')}" for n in nodes]


def _export(stack: contextlib.ExitStack, flat: _Flat, tensors: list[torch.Tensor], cudnn: bool = True) -> Any:
    """cudnn : keep its batch norm, which writes to its arguments unseen (see `hidden`)."""
    state = Attributes(flat.model)
    try:
        # Backward runs outside of autocast, as it should and mostly does: inside, bias gradients are summed in float32.
        outside = functorch_config.patch(backward_pass_autocast="off")
        with _module_paths_recorded(flat.model), eager_composites(cudnn), outside:
            return aot_export_joint_with_descriptors(stack, flat, tuple(tensors), {})
    finally:
        state.restore()  # what torch puts in the place of parameters stays in modules that have two names


def _read(gm: fx.GraphModule, flat: _Flat) -> Captured:
    c = Captured(
        graph_module=gm, output_spec=flat.output_spec, aliased_inputs=flat.aliased, ignored_outputs=flat.ignored,
        assigned=flat.assigned, questions=flat.questions,
    )  # fmt: skip
    _drop_tokens(gm.graph)
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
                output: Any = d.output
                c.tangents[n] = output.idx
            elif isinstance(d, aot.PlainAOTInput):
                c.inputs[n] = d.idx
            elif not isinstance(d, _TOKENS):
                raise TraceError(f"the model takes an input of a kind that cannot be planned yet: {d}")
        elif n.op == "get_attr":
            t: Any = gm
            for part in n.target.split("."):
                t = getattr(t, part)
            if not isinstance(t, torch.Tensor):
                raise TraceError(f"the model calls a nested graph ({n.target}), which cannot be planned yet")
            if t.requires_grad:
                raise TraceError(
                    f"the model reads a tensor of shape {list(t.shape)} that requires grad and is none of its parameters or "
                    "inputs, so that no gradient could reach it; register it as a parameter, or its module as a submodule"
                )
            c.constants[n] = t
            n.meta.setdefault("val", t)
        elif n.op == "call_function":
            for t in torch.utils._pytree.tree_leaves(n.meta.get("val")):
                if isinstance(t, torch.Tensor) and t.layout is not torch.strided:
                    raise TraceError(
                        f"{n.target} in {_module_path(n) or 'the model'} makes a tensor of layout {t.layout}; "
                        "only dense ones can be planned"
                    )
            c.nodes.append(n)
            c.module_path[n] = _module_path(n) or by_seq.get(n.meta.get("seq_nr"), "")
            if c.module_path[n] and not n.meta.get("autograd_backward"):
                by_seq.setdefault(n.meta.get("seq_nr"), c.module_path[n])
        elif n.op == "output":
            outs = list(torch.utils._pytree.tree_leaves(n.args[0], is_leaf=lambda x: x is None))
            for o, d in zip(outs, n.meta["desc"], strict=True):
                if isinstance(d, aot.PlainAOTOutput):
                    c.outputs.append(_without_copy(c, o))
                elif isinstance(d, aot.InputMutationAOTOutput):
                    c.mutations[place[d.mutated_input]] = o
                elif isinstance(d, aot.GradAOTOutput):
                    if o is not None:
                        c.gradients[place[d.grad_of]] = o
                elif o is not None and not isinstance(d, _TOKENS):
                    raise TraceError(f"the model gives a result of a kind that cannot be planned yet: {d}")
    if not c.tangents:
        raise TraceError(
            "no result of the model depends on a tensor that requires grad, so there is no backward to plan; "
            "call requires_grad_() on what should train, and do not trace under torch.no_grad()"
        )
    return c


_TOKENS = tuple(t for k, t in vars(aot).items() if "Token" in k and isinstance(t, type))


def _drop_tokens(graph: fx.Graph) -> None:
    """Checks (of linear algebra, say) are plain calls again; the tokens that order them go in and out unused."""
    for n in list(graph.nodes):
        if n.op == "call_function" and n.target is torch.ops.higher_order.with_effects:
            token, op, *args = n.args
            if op._schema.returns:
                raise TraceError(f"the model calls {op}, whose effects must keep their order; it cannot be planned yet")
            for u in list(n.users):
                u.replace_all_uses_with(token)
                graph.erase_node(u)
            with graph.inserting_before(n):
                call = graph.call_function(op, tuple(args), n.kwargs)
            call.meta = n.meta | {"val": None}
            graph.erase_node(n)


def _without_copy(c: Captured, o: fx.Node) -> fx.Node:
    """What a result is a copy of; the copy is gone."""
    assert o.target is torch.ops.aten.clone.default, f"result {o} is no copy"
    source: Any = o.args[0]
    o.replace_all_uses_with(source)
    c.nodes.remove(o)
    o.graph.erase_node(o)
    return source


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


@contextlib.contextmanager
def _no_other_random() -> Iterator[None]:
    """Numbers from Python's or NumPy's generators would become constants of the graph."""
    before = random.getstate(), np.random.get_state(legacy=False)
    try:
        yield
        after = random.getstate(), np.random.get_state(legacy=False)
    finally:
        random.setstate(before[0])
        np.random.set_state(before[1])
    for name, x, y in (("Python's", before[0], after[0]), ("NumPy's", str(before[1]), str(after[1]))):
        if x != y:
            raise TraceError(
                f"the model draws from {name} random generator, whose numbers a plan would fix for good; draw with torch "
                "and decide with torch.where, or draw outside of forward and pass the result in"
            )


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
    frames = [
        f for f in reversed(traceback.extract_tb(e.__traceback__))
        if not os.path.abspath(f.filename).startswith(here) and not f.filename.startswith("<")
        and "contextlib.py" not in f.filename
    ]  # fmt: skip
    own = [f for f in frames if not os.path.abspath(f.filename).startswith(torch_dir)]
    line = next(iter(own + [f for f in frames if os.path.join("torch", "nn", "modules") in f.filename]), None)
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

"""Traces a module on a sample: the costed Graph of one training step, and how its ops map back to the module."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

import torch
from torch import nn
from torch.fx import Node

from ..ask import GRADIENTS, LOSSES, TraceOptions
from ..errors import InfeasibleBudget, TraceError
from ..kernels import companion
from ..model.graph import OPERATOR, Graph
from ..model.plan import Plan
from ..planning.accept import callback, choice
from ..planning.accept import unused as accept_unused
from ..planning.candidates import Measured
from ..printed import listed
from ..saying import notices
from ..saying.progress import Progress, announce, telling
from . import accept
from .capture import capture as cap
from .capture.captured import Captured
from .capture.left_out import no_such_results
from .capture.stand_in import has_stand_in, stand_ins
from .costs import devices
from .costs.cache import environment
from .costs.made_up import learn_sizes
from .costs.node_costs import Costs, costs_for_all, known_workspaces, modelled_costs, node_costs, with_costs
from .costs.resident import counted, gradient_bytes, optimizers_by_name, resident_beside
from .lowering.duplicates import merge_duplicates
from .lowering.lowered import Lowered
from .lowering.normalise import lower
from .lowering.shape_only import without_shapes
from .lowering.writes import write_in_place
from .operators.node_tensors import tensors_of
from .private import is_fake, store_of_processes
from .situation import module_call as calls
from .situation.guards import Expected, InBackward, Reads
from .situation.module_call import Key, as_arguments
from .situation.module_paths import is_marked
from .situation.numbers import Attribute, Numbers, Place, attributes_set, name_of, replaced
from .tensors import tree
from .tensors.lock import LOCK
from .tensors.sharded import own_class

T = TypeVar("T")


@dataclass(frozen=True)
class Trace:
    """One captured training step of a module: its `graph`, free of torch, and how to run it.

    key : shapes, dtypes and constants of the call's arguments; another key is another graph.
    expected : the state of the module for which the graph holds.
    module_name : class of the module.
    module_kinds : (qualified name, class) of the module and all its submodules.
    fake : whether the trace was made from fake tensors, so that nothing could be measured.
    options : the options with which the step was captured.
    spec : the structure of the call's arguments, by name of forward's parameters.
    not_counted : text that names the optimizer state that a budget in bytes leaves out; "" if nothing is left out.
    state_bytes : bytes of optimizer state that are counted.
    gradient_bytes : bytes of a gradient for every trained parameter.
    saved : text that says what another choice of `gradients` would save; "" if nothing is known.
    plain_bytes : the measured activation peak of the plain step, where the graph says another; None: as the graph says.
    origin : of a rewritten step, the trace of the step as it was captured; None: this is that trace. See `rewrite.rewritten`.
    """

    graph: Graph
    lowered: Lowered
    key: Key
    expected: Expected
    module_name: str
    fake: bool
    options: TraceOptions = field(default_factory=TraceOptions)
    module_kinds: tuple[tuple[str, str], ...] = ()
    spec: Any = None
    not_counted: str = ""
    state_bytes: int = 0
    gradient_bytes: int = 0
    saved: str = ""
    plain_bytes: Measured | None = None
    origin: Trace | None = field(default=None, repr=False)

    @property
    def as_captured(self) -> Trace:
        """The trace of the step as it was captured, without rewrites."""
        return self if self.origin is None else self.origin

    def __repr__(self) -> str:
        return f"Trace({self.module_name}, {self.graph!r})"

    def costed(
        self, target: str | None = None, progress: Callable[[str], None] | None = None, measure: bool = True
    ) -> Trace:
        """The same trace with the seconds, FLOPs and workspace of each op.

        Seconds are measured on the device at hand, or follow from the roofline of `target`. An op that cannot run here (fake
        tensors, a device that is absent) gets modelled costs. measure : False: no op is run to be timed; it costs as it was
        measured before, or by the roofline fitted to all ops that were measured in this environment.
        """
        graph = _costed(self.lowered, self.fake, target, progress, measure)
        return replace(self.with_graph(graph), options=replace(self.options, target=target))

    def planned(self, make: Callable[[Graph], T]) -> T:
        """The result of `make` for the graph. Before a budget is refused, guessed workspaces are measured, or left out."""
        try:
            return make(self.graph)
        except InfeasibleBudget:
            if (sure := self.without_guesses()) is self:
                raise
        return make(sure.graph)

    def without_guesses(self) -> Trace:
        """The same trace with no workspace that was guessed. Such ops run now; those that cannot run count none."""
        if self.fake or self.options.target is not None:
            return self
        ops, calls = self.graph.ops, self.lowered.calls
        at = [i for i, c in enumerate(calls) if c.kind == OPERATOR and c.node is not None]
        sizes = [op.workspace for op in ops]
        for i, size in zip(at, known_workspaces([n for i in at if (n := calls[i].node) is not None]), strict=True):
            sizes[i] = size
        if sizes == [op.workspace for op in ops]:
            return self
        return self.with_graph(self.graph.with_costs([op.seconds for op in ops], sizes))

    def with_gradients(self, gradients: str) -> Trace:
        """The same trace, for a loop that treats gradients in this way."""
        low, graph, how = self.lowered, self.graph, self.options
        if gradients == how.gradients:
            return self
        more = self.gradient_bytes * ((gradients == "kept") - (how.gradients == "kept"))
        made = lower(low.captured, graph.name, graph.resident_bytes + more, how.must_save, gradients)
        costs = [(o.seconds, o.flops, o.workspace) for o in graph.ops]
        at = [i for i, c in enumerate(made.calls) if c.kind == OPERATOR]
        counted = with_costs(made.graph, at, [costs[i] for i in at])
        origin = None if self.origin is None else self.origin.with_gradients(gradients)
        options = replace(how, gradients=gradients)
        return replace(
            self, graph=counted, lowered=replace(made, graph=counted), options=options, origin=origin, saved=""
        )

    def with_graph(self, graph: Graph) -> Trace:
        """The same trace with the same graph, of other costs."""
        return self if graph is self.graph else replace(self, graph=graph, lowered=replace(self.lowered, graph=graph))


def trace(
    model: nn.Module,
    sample: Any,
    *,
    loss: str = "auto",
    target: str | None = None,
    optimizer: torch.optim.Optimizer | type | str | None = None,
    must_save: Sequence[str] = (),
    unused: Sequence[str] = (),
    gradients: str = "kept",
    progress: Progress = None,
) -> Trace:
    """Capture one training step of `model` called with `sample`.

    Parameters
    ----------
    sample : a tensor, a tuple of positional arguments, or a mapping of keyword arguments. Shapes, dtypes, devices and
        constants matter, and where forward branches on what inputs hold (whether a mask masks anything), their
        values. Fake tensors serve as well: there a library that knows of tracing takes the branch that is right for all.
    loss : the results to which gradients come back. "auto": only the scalar under the key `loss`; or, if the first result is a
        scalar, all scalars that require grad; without either, every result that requires grad. "all": every such result.
    target : name of a device whose roofline gives the seconds; None: they are measured on the device at hand. Where a GPU is
        named, attention that the CPU runs as plain operators is captured as that GPU's fused kernel, so that its sizes are the
        GPU's. Such a trace is for planning, and runs on fake tensors alone.
    optimizer : a torch optimizer, its class or a name such as "adamw". Its state counts as held during the whole step, even
        before the first step has made it.
    must_save : names of submodules, or patterns such as "blocks.*.router", whose ops must never run again (a routing
        decision that recomputation could flip, say); their results that backward needs are saved.
    unused : names of results that the training loop does not read, such as ["logits"]: planned calls return None in their
        place, so that no memory is held for them. A name is the key of a dict or ModelOutput, the field of a dataclass or
        named tuple, or an index as text ("1"); dots join the names of nested results ("aux.logits"). Calls that run
        plain, as in `eval()` and under `no_grad`, return all results.
    gradients : how the training loop treats the `.grad` of parameters. "kept": a gradient for every trained parameter counts
        during the whole step, so that any loop is safe. "fresh": they are None when a step begins, as after
        `optimizer.zero_grad()`, so each counts from when backward has made it. "consumed": an optimizer inside backward uses up
        and frees each gradient as it comes; its own temporary memory is not counted. A loop that does otherwise gets a warning.
    progress : as in `rekindle.plan`.

    Raises
    ------
    TraceError : the call cannot be captured, or the module itself fails on the sample; the message names the source line
        and the remedy.
    UsageError : an argument makes no sense, or cannot be planned (a wrapper, a sharded or lazy model, …). Of `unused`: a name
        that fits no result, or the loss, or all results.
    """
    accept.process("trace")
    accept.module(model)
    accept.optimizer(optimizer)
    callback("progress", progress)
    if target is not None:
        devices.get(target)
    marks = accept.must_save(model, must_save)
    choice("loss", loss, LOSSES)
    choice("gradients", gradients, GRADIENTS)
    gpu = None if devices.capability(target) is None else target
    options = TraceOptions(loss, target, optimizer, tuple(marks), None, gpu, accept_unused(unused), gradients)
    return trace_with(model, sample, options, progress)


def trace_with(model: nn.Module, sample: Any, options: TraceOptions, progress: Progress = None) -> Trace:
    """`trace` with options that are checked."""
    args, kwargs = accept.sample(sample)
    accept.parameters(model, tree.flatten((args, kwargs))[0])
    companion.start()  # the search is compiled while the model is traced and its operators are timed
    with accept.alone("trace", model, progress), telling(progress) as tell, accept.gradients_on():
        announce(progress, f"capturing {type(model).__name__}")
        with LOCK.capturing(model):
            made = trace_call(model, args, kwargs, options, inputs={})
            if names := made.lowered.captured.no_results:
                raise no_such_results(names, made.lowered.captured.output_spec, made.module_name)
            made = made.costed(options.target, tell)
    if effects := made.lowered.captured.effects:
        notices.warn(
            f"planned steps do not run {listed(effects)}, which do more than compute; take them off, or put "
            f"them on the {type(model).__name__} itself, where they are called at every step"
        )
    return made


def trace_call(
    model: nn.Module,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    options: TraceOptions,
    *,
    forward: Callable[..., Any] | None = None,
    progress: Callable[[str], None] | None = None,
    by_values: bool = True,
    inputs: Mapping[Place, Any] | None = None,
) -> Trace:
    """`trace` of the call `forward(*args, **kwargs)`. forward : None is the model's own.

    by_values : False: forward cannot branch on values of inputs.
    inputs : Python numbers that become inputs of the graph, as they are now; such a trace has no costs, {} included.
    """
    with LOCK.capturing(model):
        state, left_out = counted(model, options.optimizer, options.state_bytes)
        own = plain_forward(model) if forward is None else forward
        call = replace(calls.bind(own, args, kwargs), inside=options.inside)
        reads = Reads()
        numbers = Numbers(tuple(inputs or ()))
        taken = stand_ins(numbers, inputs or {})
        spec = as_arguments(replaced(call.spec, taken))
        with attributes_set(model, taken), reads.in_backward():
            captured = cap.capture(
                model, reads.recorded(call.taken_apart(own)), call.tensors, spec, options, by_values, numbers,
                devices.capability(options.attention),
            )  # fmt: skip
        if any(map(has_stand_in, [captured.output_spec, *captured.fills])):
            raise TraceError(
                "forward returns a number that changes from call to call", reason="returns a changing number"
            )
        fake = any(is_fake(t) for t in [*call.tensors, *model.parameters()])
        if not fake:
            learn_sizes(captured)
        _check_written(model, call.tensors, captured)
        paths = captured.module_path
        merged = merge_duplicates(captured, lambda n: is_marked(paths.get(n, ""), options.must_save))
        captured = write_in_place(without_shapes(merged))
        name = type(model).__name__
        resident = resident_beside(model, call.tensors, captured, options.gradients) + state
        lowered = lower(captured, name, resident, options.must_save, options.gradients)
        ignored = [*captured.changed, *(name_of(p, None) for p in numbers.places if isinstance(p, Attribute))]
        backward = InBackward(captured.in_backward, captured.held, reads.by_path(model, late=True))
        expected = Expected.of(model, reads.by_path(model), ignored, captured.written_places, backward)
        key = replace(call, spec=replaced(call.spec, {p: type(x) for p, x in (inputs or {}).items()})).key
        made = Trace(
            lowered.graph, lowered, key, expected, name, fake, options, module_kinds(model), call.spec, left_out, state,
            gradient_bytes=gradient_bytes(model),
        )  # fmt: skip
        return made.costed(options.target, progress) if inputs is None else made


def _check_written(model: nn.Module, tensors: Sequence[torch.Tensor], captured: Captured) -> None:
    """Check that forward writes over no input that requires grad, or that shares memory with another tensor.

    Raises
    ------
    TraceError : it does.
    """
    held = [*tensors, *model.parameters(), *model.buffers()]
    for t in (tensors[captured.inputs[p]] for p in captured.mutations if p in captured.inputs):
        if t.requires_grad:
            why = "writes over an input that requires grad"
            raise TraceError(f"the model {why}; clone the input before it is changed", reason=why)
        if any(t is not s and t.untyped_storage()._cdata == s.untyped_storage()._cdata for s in held):
            why = "writes over an input that shares memory with another"
            raise TraceError(f"the model {why}; clone one of them", reason=why)


def known_options(plan: Plan) -> TraceOptions:
    """The options of a plan's capture, without an optimizer or a device that this version does not know (a plan file may name
    one); a warning says so."""
    options = plan.trace_options
    if plan.trace is not None:
        return options
    if (
        isinstance(options.optimizer, str)
        and options.state_bytes is None
        and options.optimizer.strip().lower() not in optimizers_by_name()
    ):
        notices.warn(
            f"the plan's file names the optimizer {options.optimizer!r}, which is not known here, and no bytes of its state: "
            "plans for other calls do not count it. Make the plan again with an optimizer or its class"
        )
        options = replace(options, optimizer=None)
    if options.target is not None and not devices.is_known(options.target):
        notices.warn(
            f"the plan's file names the device {options.target!r}, which is not known here: for plans for other calls "
            "seconds are measured on the device at hand"
        )
        options = replace(options, target=None)
    if options.attention is not None and not devices.is_known(options.attention):
        options = replace(options, attention=None)  # then the plan may not fit, which is an error of its own
    return options


def _costed(
    lowered: Lowered, fake: bool, target: str | None, progress: Callable[[str], None] | None, measure: bool
) -> Graph:
    graph = lowered.graph
    at = [i for i, c in enumerate(lowered.calls) if c.kind == OPERATOR]
    nodes = [n for i in at if (n := lowered.calls[i].node) is not None]
    companion.start()  # the search is compiled while the model is traced and its operators are timed

    def here() -> Costs:
        if fake:  # what happens to be known of this machine must not matter
            costs = modelled_costs(nodes, target)
        else:
            costs = node_costs(nodes, target=target, measure=None if measure else False, progress=progress)
        return [(c.seconds, c.flops, c.workspace) for c in costs]

    shared = measure and target is None and not fake and store_of_processes() is not None
    return with_costs(
        graph, at, costs_for_all(graph, len(at), _environments(nodes), here, progress) if shared else here()
    )


def _environments(nodes: Iterable[Node]) -> str:
    """All that costs of these nodes depend on in this process, as text."""
    devices = {t.device.type for n in nodes for _, t in tensors_of(n)}
    return "; ".join(environment(torch.device(kind)) for kind in sorted(devices))


def module_kinds(model: nn.Module) -> tuple[tuple[str, str], ...]:
    """(qualified name, class) of a module and all its submodules."""
    return tuple((name, own_class(m).__name__) for name, m in model.named_modules())


def plain_forward(model: nn.Module) -> Callable[..., Any]:
    """The module's own forward, even if the module is planned already."""
    forward = model.forward
    return getattr(forward, "plain", forward)

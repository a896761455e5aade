"""A captured call: its joint graph, and the parameters, inputs and results that its nodes stand for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from types import FunctionType, SimpleNamespace
from typing import Any, NamedTuple

import torch
from torch import fx

from ..operators.hidden_writes import STATISTICS
from ..operators.node_tensors import tensors_of
from ..private import FakeTensorMode, fake_mode_of
from ..situation.numbers import Numbers
from ..situation.surroundings import is_cast_once
from ..tensors import tree
from .inner_results import Inner
from .known_values import Question


class Assigned(NamedTuple):
    """The tensor that forward sets an attribute to.

    output : its index among the outputs; None: it is `source`, an input by index, or a parameter or buffer by name.
    """

    output: int | None
    source: int | str = ""


class Writing(NamedTuple):
    """A call that returns the same as another op, and also writes what the module mutates. args : as of a node."""

    target: Any
    args: tuple[Any, ...]

    @property
    def placeholders(self) -> list[fx.Node]:
        """The placeholders that it writes to, whole or by a slice: a batch norm in slices writes parts of its statistics."""
        declared = [i for i, a in enumerate(self.target._schema.arguments) if a.alias_info and a.alias_info.is_write]
        return [base_of(self.args[i]) for i in declared or STATISTICS if isinstance(self.args[i], fx.Node)]


@dataclass(frozen=True, eq=False)
class Captured:
    """A captured call as a functional joint graph. Whoever changes it makes another one; where its nodes
    are edited (`lowering`), the earlier one is of no use.

    No op writes to its inputs, and tensors that the module mutates come back as new values, except those in `writing` (see
    `lowering.writes`).

    nodes : every call_function node in order, forward first.
    params, buffers : placeholder -> qualified name in the module.
    inputs : placeholder -> index of the user's tensor.
    constants : get_attr node -> tensor; also a placeholder, for a tensor that forward writes to (see `written_outside`).
    tangents : placeholder -> index of the output whose gradient it is.
    outputs : node per output tensor of the module, in order of `output_spec`.
    mutations : placeholder -> the node that holds its new value after forward.
    writing : node -> the call that its first run makes instead; tensors that this call writes are not in `mutations`.
    gradients : placeholder -> the node that holds its gradient.
    inner : node that holds the whole gradient of a result from which forward goes on -> that result.
    goes_on : numbers of such results, also of those whose whole gradient no node holds.
    retained : numbers of results whose gradient forward tells autograd to keep (`retain_grad`).
    fills : containers of the caller's as forward leaves them; their tensors follow those of the results.
    aliased_inputs : output leaf -> the input that it is, by index, or the parameter or buffer, by name.
    source : node -> file and line of the user's code, where known.
    ignored_outputs : output that is taken as not differentiated -> its place.
    assigned : attribute that forward sets to another tensor -> that tensor: an output, counted after the ones in
        `output_spec`, or a source as in `aliased_inputs`.
    settles : whether the next call has another signature, or another graph: forward sets an attribute to a tensor that was
        none before, or had another shape, dtype or device; or a function that it calls keeps a tensor (`functools.lru_cache`).
    effects : names of hooks on submodules, and of patched forwards, with side effects, one for each; planned steps run none of
        them.
    dropped : names of other state that forward changes and planned steps do not.
    questions : that forward asked about the values of inputs.
    cast : inputs and parameters that autocast casts -> whether once.
    changed : attributes that forward changes, which planned calls leave alone.
    written_places : other places where forward writes, as in `SideEffects.written`; the ids are valid while it is captured.
    numbers : Python numbers that are inputs.
    elsewhere : kernels of a GPU that is not here, in place of the CPU's (see `attention`): the graph can run on fake tensors
        alone.
    no_results : names in `TraceOptions.unused` that fit no result of this call.
    in_backward : the user's functions that backward runs, without their closures. held : ids of the objects that forward leaves
        to Functions and hooks; they are valid while it is captured. handed : names of the arguments that hold such an object.
    graph_module : owns the nodes.
    """

    nodes: Sequence[fx.Node] = ()
    params: Mapping[fx.Node, str] = field(default_factory=dict)
    buffers: Mapping[fx.Node, str] = field(default_factory=dict)
    inputs: Mapping[fx.Node, int] = field(default_factory=dict)
    constants: Mapping[fx.Node, torch.Tensor] = field(default_factory=dict)
    tangents: Mapping[fx.Node, int] = field(default_factory=dict)
    outputs: Sequence[fx.Node] = ()
    mutations: Mapping[fx.Node, fx.Node] = field(default_factory=dict)
    writing: Mapping[fx.Node, Writing] = field(default_factory=dict)
    gradients: Mapping[fx.Node, fx.Node] = field(default_factory=dict)
    inner: Mapping[fx.Node, Inner] = field(default_factory=dict)
    goes_on: frozenset[int] = frozenset()
    retained: Sequence[int] = ()
    output_spec: Any = None
    fills: Sequence[tree.Branch] = ()
    aliased_inputs: Mapping[int, int | str] = field(default_factory=dict)
    module_path: Mapping[fx.Node, str] = field(default_factory=dict)
    source: Mapping[fx.Node, str] = field(default_factory=dict)
    ignored_outputs: Mapping[int, str] = field(default_factory=dict)
    assigned: Mapping[str, Assigned] = field(default_factory=dict)
    settles: bool = False
    effects: Sequence[str] = ()
    dropped: Sequence[str] = ()
    questions: Sequence[Question] = ()
    cast: Mapping[int | str, bool] = field(default_factory=dict)
    changed: Sequence[str] = ()
    written_places: frozenset[Any] = frozenset()
    numbers: Numbers = field(default_factory=Numbers)
    elsewhere: Sequence[str] = ()
    no_results: Sequence[str] = ()
    in_backward: Sequence[FunctionType] = ()
    held: frozenset[int] = frozenset()
    handed: Sequence[str] = ()
    graph_module: Any = None

    @property
    def placeholders(self) -> list[fx.Node]:
        """The tensors that the caller holds: parameters, buffers, inputs, constants."""
        return [*self.params, *self.buffers, *self.inputs, *self.constants]

    @property
    def own(self) -> int:
        """How many outputs the call's result and the caller's containers hold; those that attributes alone hold follow."""
        leaves = {x.index for s in (self.output_spec, *self.fills) for x in tree.leaves(s) if isinstance(x, tree.Leaf)}
        return len(leaves) - len(self.aliased_inputs)

    @property
    def device(self) -> torch.device:
        """The device by which autograd's engine chooses the thread and the stream of the step's backward: the tensors' own.

        The engine has one thread for each GPU, and runs a node in the thread of its tensors, on the stream of its forward. A
        node of tensors on the CPU would run beside the accumulation of the gradients that it returns, so that these would be
        freed late, and on another stream than a forward that ran on a stream of its own.
        """
        tensors = (t for n in [*self.placeholders, *self.tangents] for _, t in tensors_of(n))
        return next((t.device for t in tensors if t.device.type == "cuda"), torch.device("cpu"))

    def casts(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether autocast would cast these inputs as often as the captured ones: once, or at each use. The call's key does not
        say so where forward itself turns autocast on."""
        return all(is_cast_once(tensors[i]) == once for i, once in self.cast.items() if isinstance(i, int))

    def on(self, graph: fx.Graph, new: Mapping[fx.Node, fx.Node]) -> Captured:
        """The same step on the nodes of another graph. new : node of this graph -> node of that one."""

        def to(n: Any) -> Any:
            return new.get(n, n) if isinstance(n, fx.Node) else n

        by_node: Any = {k: {new[n]: x for n, x in getattr(self, k).items() if n in new} for k in _BY_NODE}
        return replace(
            self,
            nodes=[new[n] for n in self.nodes],
            **by_node,
            outputs=[to(n) for n in self.outputs],
            mutations={new[p]: to(n) for p, n in self.mutations.items()},
            gradients={new[p]: to(n) for p, n in self.gradients.items()},
            writing={new[n]: Writing(w.target, tuple(fx.map_arg(w.args, to))) for n, w in self.writing.items()},
            graph_module=SimpleNamespace(graph=graph),
        )


_BY_NODE = ("params", "buffers", "inputs", "constants", "tangents", "inner", "module_path", "source")


def base_of(n: fx.Node) -> fx.Node:
    """The node of which `n` is a slice, or n itself."""
    while n.target is torch.ops.aten.slice.Tensor:
        n = n.all_input_nodes[0]
    return n


def memory_of(n: fx.Node) -> set[int]:
    """The storages in which the tensors of a node lie."""
    return {t.untyped_storage()._cdata for _, t in tensors_of(n)}


def fake_result(n: fx.Node) -> Any:
    """The fake result of an op on the fake tensors of its arguments."""
    args, kwargs = fx.map_arg((n.args, n.kwargs), lambda a: a.meta["val"])
    return n.target(*args, **kwargs)  # type: ignore[operator]


def joint_fake_mode(gm: fx.GraphModule) -> FakeTensorMode | None:
    """The FakeTensorMode of the fake tensors in the graph's metas."""
    return fake_mode_of([n.meta["val"] for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)])

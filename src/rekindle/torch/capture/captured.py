"""A captured call: its joint graph, and the parameters, inputs and results that its nodes stand for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx

from ..operators.hidden_writes import STATISTICS
from ..private import FakeTensorMode, fake_mode_of
from ..situation.numbers import Numbers
from ..situation.surroundings import is_cast_once
from ..tensors.tree import Branch
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


@dataclass
class Captured:
    """A captured call as a functional joint graph.

    No op writes to its inputs, and tensors that the module mutates come back as new values, except those in `writing` (see
    `in_place`).

    nodes : every call_function node in order, forward first.
    params, buffers : placeholder -> qualified name in the module.
    inputs : placeholder -> index of the user's tensor.
    constants : get_attr node -> tensor.
    tangents : placeholder -> index of the output whose gradient it is.
    outputs : node per output tensor of the module, in order of `output_spec`.
    mutations : placeholder -> the node that holds its new value after forward.
    writing : node -> the call that its first run makes instead; tensors that this call writes are not in `mutations`.
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
    fills: list[Branch] = field(
        default_factory=list
    )  # containers of the caller's as forward leaves them; after the results
    # output leaf -> the input that it is, by index, or the parameter or buffer, by name
    aliased_inputs: dict[int, int | str] = field(default_factory=dict)
    module_path: dict[fx.Node, str] = field(default_factory=dict)
    source: dict[fx.Node, str] = field(default_factory=dict)  # node -> file and line of the user's code, where known
    ignored_outputs: dict[int, str] = field(default_factory=dict)  # output -> its place; taken as not differentiated
    # attribute that forward sets to another tensor -> that tensor: an output, counted after the ones in `output_spec`, or a
    # source as in `aliased_inputs`
    assigned: dict[str, Assigned] = field(default_factory=dict)
    # Forward sets an attribute to a tensor that was none before, or had another shape, dtype or device; or a function that it
    # calls keeps a tensor (`functools.lru_cache`). The next call has another signature, or another graph.
    settles: bool = False
    # names of hooks on submodules, and of patched forwards, with side effects; planned steps do not run their code
    effects: list[str] = field(default_factory=list)
    dropped: list[str] = field(
        default_factory=list
    )  # names of other state that forward changes and planned steps do not
    questions: list[Question] = field(default_factory=list)  # that forward asked about the values of inputs
    cast: dict[int | str, bool] = field(default_factory=dict)  # inputs, parameters that autocast casts -> whether once
    changed: tuple[str, ...] = ()  # attributes that forward changes, which planned calls leave alone
    written_places: frozenset[Any] = (
        frozenset()
    )  # other places where forward writes, as in `SideEffects.written`; the ids are valid while it is captured
    numbers: Numbers = field(default_factory=Numbers)  # Python numbers that are inputs
    # parameters whose gradients differed from eager's by rounding, where one backward goes through two calls
    rounds: list[str] = field(default_factory=list)
    # kernels of a GPU that is not here, in place of the CPU's (see `attention`): the graph can run on fake tensors alone
    elsewhere: tuple[str, ...] = ()
    no_results: tuple[str, ...] = ()  # names in `TraceOptions.unused` that fit no result of this call
    graph_module: Any = None  # owns the nodes

    @property
    def placeholders(self) -> list[fx.Node]:
        """The tensors that the caller holds: parameters, buffers, inputs, constants."""
        return [*self.params, *self.buffers, *self.inputs, *self.constants]

    def casts(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether autocast would cast these inputs as often as the captured ones: once, or at each use. The call's key does not
        say so where forward itself turns autocast on."""
        return all(is_cast_once(tensors[i]) == once for i, once in self.cast.items() if isinstance(i, int))


def base_of(n: fx.Node) -> fx.Node:
    """The node of which `n` is a slice, or n itself."""
    while n.target is torch.ops.aten.slice.Tensor:
        n = n.all_input_nodes[0]
    return n


def joint_fake_mode(gm: fx.GraphModule) -> FakeTensorMode | None:
    """The FakeTensorMode of the fake tensors in the graph's metas."""
    return fake_mode_of([n.meta["val"] for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)])

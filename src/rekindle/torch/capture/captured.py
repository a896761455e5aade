"""What a captured call is: a joint graph, and what its nodes are to the module."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import fx
from torch._guards import detect_fake_mode
from torch._subclasses.fake_tensor import FakeTensorMode

from .known_values import Question
from .numbers import Numbers


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
    # Forward sets an attribute to a tensor where there was none, or one of another shape, dtype or device: the next call is
    # another one, of another signature.
    settles: bool = False
    # hooks on submodules, and their patched forwards, that do more than compute: by name; planned steps do not run their code
    effects: list[str] = field(default_factory=list)
    dropped: list[str] = field(default_factory=list)  # what else forward changes and planned steps do not
    questions: list[Question] = field(default_factory=list)  # that forward asked about the values of inputs
    changed: tuple[str, ...] = ()  # attributes that forward changes itself, which planned calls leave alone
    written_places: frozenset[Any] = (
        frozenset()
    )  # and where else it writes, as `SideEffects.written`; ids hold while it is captured
    numbers: Numbers = field(default_factory=Numbers)  # Python numbers that are inputs
    # parameters whose gradients were seen to be added up otherwise than in eager where one backward goes through two calls
    rounds: list[str] = field(default_factory=list)
    graph_module: Any = None  # owns the nodes

    @property
    def placeholders(self) -> list[fx.Node]:
        """Everything the caller holds: parameters, buffers, inputs, constants."""
        return [*self.params, *self.buffers, *self.inputs, *self.constants]

    @property
    def written_parameters(self) -> list[str]:
        """Names of the parameters that forward writes to."""
        targets = {*self.mutations, *(a for w in self.writing.values() for a in w.args if isinstance(a, fx.Node))}
        return [name for p, name in self.params.items() if p in targets]


def joint_fake_mode(gm: fx.GraphModule) -> FakeTensorMode | None:
    """The mode in which the graph's metas live."""
    return detect_fake_mode([n.meta["val"] for n in gm.graph.nodes if isinstance(n.meta.get("val"), torch.Tensor)])

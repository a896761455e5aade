"""Reads a joint graph that AOTAutograd made: the role of each node, and reasons why it cannot be planned."""

from __future__ import annotations

import operator
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import fx, nn

from ...errors import TraceError
from ...saying.frames import in_short
from ..private import OpOverload, aot, fake_mode_of, is_fake, tree_leaves
from ..situation.module_paths import module_path, source_line
from ..tensors import tree
from .captured import Captured
from .eager_kernels import OUTSIDE
from .inner_results import take_marks
from .trace_errors import NO_BACKWARD, moves

_PREFIX = "model."  # of names: the traced FlatForward has the user's module as a submodule


def read_joint_graph(c: Captured, model: nn.Module) -> Captured:
    """The captured step with its nodes and their roles, from the joint graph of the model. c : what is known beside the graph.

    Raises
    ------
    TraceError : the graph cannot be planned; the message says why.
    """
    graph = c.graph_module.graph
    _drop_tokens(graph)
    roles = _Roles()
    place: dict[Any, fx.Node] = {}  # placeholder by AOTAutograd's descriptor
    by_seq: dict[Any, str] = {}  # autograd's sequence number ties a backward op to the forward op it belongs to
    for n in graph.nodes:
        if n.op == "placeholder":
            place[n.meta["desc"]] = n
            _placeholder(roles, n)
        elif n.op == "get_attr":
            _constant(roles, n, c.graph_module)
        elif n.op == "call_function":
            _call(roles, n, by_seq)
        elif n.op == "output":
            _results(roles, n, place, model)
    for n in [n for n, name in roles.buffers.items() if name.startswith(OUTSIDE)]:
        roles.constants[n] = model._buffers[roles.buffers.pop(n)]  # type: ignore[assignment]
    if not roles.tangents and (kinds := sorted(set(tree.opaque_kinds(c.output_spec)))):
        raise TraceError(
            f"forward returns an object of type {', '.join(kinds)}, which cannot be taken apart into tensors, and no "
            "other tensor that requires grad; return tensors, or tuples, named tuples, lists, dicts or dataclasses of them",
            reason=f"returns an object of type {', '.join(kinds)}",
        )
    if not roles.tangents:
        raise TraceError(
            "no result of the model depends on a tensor that requires grad, so there is no backward to plan; "
            "call requires_grad_() on the parameters to train, and do not trace under torch.no_grad()",
            reason=NO_BACKWARD,
        )
    inner, ends = take_marks(roles.nodes, roles.gradients, roles.tangents)
    return replace(c, **vars(roles), inner=inner, goes_on=c.goes_on - ends)


@dataclass
class _Roles:
    """The roles of nodes, as in `Captured`, while the graph is read."""

    nodes: list[fx.Node] = field(default_factory=list)
    params: dict[fx.Node, str] = field(default_factory=dict)
    buffers: dict[fx.Node, str] = field(default_factory=dict)
    inputs: dict[fx.Node, int] = field(default_factory=dict)
    constants: dict[fx.Node, torch.Tensor] = field(default_factory=dict)
    tangents: dict[fx.Node, int] = field(default_factory=dict)
    outputs: list[fx.Node] = field(default_factory=list)
    mutations: dict[fx.Node, fx.Node] = field(default_factory=dict)
    gradients: dict[fx.Node, fx.Node] = field(default_factory=dict)
    module_path: dict[fx.Node, str] = field(default_factory=dict)
    source: dict[fx.Node, str] = field(default_factory=dict)


def _placeholder(c: _Roles, n: fx.Node) -> None:
    d, t = n.meta["desc"], n.meta.get("val")
    if isinstance(t, torch.Tensor) and t.layout is not torch.strided and not n.users:
        n.meta["val"] = None  # a sparse buffer that no op reads
    if isinstance(d, aot.ParamAOTInput):
        c.params[n] = d.target.removeprefix(_PREFIX)
    elif isinstance(d, aot.BufferAOTInput):
        c.buffers[n] = d.target.removeprefix(_PREFIX)
    elif isinstance(d, aot.TangentAOTInput):
        output: Any = d.output
        if isinstance(output, aot.InputMutationAOTOutput):
            raise _written(output.mutated_input, n.graph)
        c.tangents[n] = output.idx
    elif isinstance(d, aot.PlainAOTInput):
        c.inputs[n] = d.idx
    elif not isinstance(d, _TOKENS):
        while hasattr(d, "base"):  # a part of a tensor that torch takes apart
            d = d.base
        name = getattr(d, "target", f"input {getattr(d, 'idx', '')}").removeprefix(_PREFIX)
        raise TraceError(
            f"{name!r} is a tensor of a class that wraps others (__torch_dispatch__), which cannot be captured. "
            "rekindle.checkpoint plans the parts around it",
            reason="uses tensors of a class that wraps others",
        )


def _written(what: Any, graph: fx.Graph) -> TraceError:
    if isinstance(what, aot.ParamAOTInput):
        results = _outs(graph.output_node())
        made = next(o for o, d in results if isinstance(d, aot.InputMutationAOTOutput) and d.mutated_input == what)
        at = f" at {line}" if (line := source_line(made)) else ""
        name = what.target.removeprefix(_PREFIX)
        return TraceError(
            f"forward writes to the parameter {name!r}{at}, which requires grad, and a plan "
            "cannot tell of which of its two values the gradient is. Write to it outside of forward, under no_grad; if only "
            "the first call writes, call the model once before planning; or, if it is not trained, call "
            "requires_grad_(False) on it before planning",
            line=in_short(line),
            reason=f"writes to the parameter {name}, which requires grad",
        )
    words = "writes over a tensor that requires grad"
    return TraceError(f"forward {words}; clone it before it is changed", reason=words)


def _constant(c: _Roles, n: fx.Node, gm: Any) -> None:
    t = operator.attrgetter(str(n.target))(gm)
    if isinstance(t, torch.Generator):
        reader = next(iter(n.users), n)
        raise TraceError(
            f"{reader.target} in {module_path(reader) or 'the model'} draws from a generator of its own (generator=), "
            "whose state a plan cannot restore to draw the same numbers again; draw from torch's default generator, or outside "
            "of forward and pass the result in",
            line=in_short(source_line(reader)),
            reason="draws from a generator of its own",
        )
    if not isinstance(t, torch.Tensor):
        raise TraceError(
            f"the model calls a nested graph ({n.target}), which cannot be planned yet", reason="calls a nested graph"
        )
    if t.requires_grad:
        raise TraceError(
            f"the model reads a tensor of shape {list(t.shape)} that requires grad and is neither a parameter nor an "
            "input, so no gradient could reach it; register it as a parameter, or its module as a submodule",
            line=in_short(next((line for u in n.users if (line := source_line(u))), "")),
            reason="reads a tensor that requires grad and is no parameter",
        )
    c.constants[n] = t
    # The tensor of which the graph's views are: another node of the same tensor, or a buffer, may be it too.
    mode = fake_mode_of([next(iter(gm.graph.nodes)).meta.get("val")])
    n.meta["val"] = t if mode is None or is_fake(t) else mode.from_tensor(t)


def _call(c: _Roles, n: fx.Node, by_seq: dict[Any, str]) -> None:
    path, seq = module_path(n), n.meta.get("seq_nr")
    for t in tree_leaves(n.meta.get("val")):
        if isinstance(t, torch.Tensor) and t.layout is not torch.strided:
            raise TraceError(
                f"{n.target} in {path or 'the model'} makes a tensor of layout {t.layout}, and only dense tensors can be "
                "planned. Use a dense one: to_dense(), or sparse=False for an embedding. rekindle.checkpoint plans the parts "
                "around it",
                reason="makes a tensor that is not dense",
            )
    c.nodes.append(n)
    if line := source_line(n):
        c.source[n] = line
    c.module_path[n] = path or by_seq.get(seq, "")
    if c.module_path[n] and not n.meta.get("autograd_backward"):
        by_seq.setdefault(seq, c.module_path[n])


def _results(c: _Roles, output: fx.Node, place: dict[Any, fx.Node], model: nn.Module) -> None:
    for o, d in _outs(output):
        if isinstance(d, aot.PlainAOTOutput):
            c.outputs.append(_without_copy(c, o))
        elif isinstance(d, aot.InputMutationAOTOutput):
            p = place[d.mutated_input]
            c.mutations[p] = o
            name = c.params.get(p) or c.buffers.get(p)
            if name and p.meta["val"].shape != o.meta["val"].shape:  # a kernel that resizes it
                raise moves(model, [name], source_line(o))
        elif isinstance(d, aot.GradAOTOutput):
            if o is not None:
                c.gradients[place[d.grad_of]] = o
        elif o is not None and not isinstance(d, _TOKENS):
            raise TraceError(
                f"the model returns a result of a kind that cannot be planned yet: {d}",
                reason="returns an unknown kind of result",
            )


def _outs(output: fx.Node) -> list[tuple[Any, Any]]:
    """(node, AOTAutograd's descriptor) of each result."""
    return list(zip(tree_leaves(output.args[0], is_leaf=lambda x: x is None), output.meta["desc"], strict=True))


_TOKENS = tuple(t for k, t in vars(aot).items() if "Token" in k and isinstance(t, type))


def _drop_tokens(graph: fx.Graph) -> None:
    """Turn ops that torch orders by tokens, such as checks of linear algebra, into plain calls; the tokens stay unused. Marks
    for profilers (`record_function`) go: they compute nothing."""
    for n in reversed(list(graph.nodes)):
        if isinstance(n.target, OpOverload) and n.target.namespace == "profiler":
            graph.erase_node(n)
    for n in list(graph.nodes):
        if n.op == "call_function" and n.target is torch.ops.higher_order.with_effects:
            token, op, *args = n.args
            if op._schema.returns:
                raise TraceError(
                    f"the model calls {op}, whose effects must keep their order; it cannot be planned yet",
                    line=in_short(source_line(n)), reason=f"calls {op}",
                )  # fmt: skip
            for u in list(n.users):
                u.replace_all_uses_with(token)
                graph.erase_node(u)
            with graph.inserting_before(n):
                call = graph.call_function(op, tuple(args), n.kwargs)
            call.meta = n.meta | {"val": None}
            graph.erase_node(n)


def _without_copy(c: _Roles, o: fx.Node) -> fx.Node:
    """The node that a result copies; the copy is removed."""
    assert o.target is torch.ops.aten.clone.default, f"result {o} is no copy"
    source: Any = o.args[0]
    o.replace_all_uses_with(source)
    c.nodes.remove(o)
    o.graph.erase_node(o)
    return source

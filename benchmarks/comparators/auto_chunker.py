"""Inductor's auto_chunker without Inductor: its pass over the captured joint graph, which `compiled` then partitions and runs.

The pass takes the matrix product whose result is largest beside its operands (a language model's head), and runs it, the loss
and the head's backward chunk by chunk inside forward, as if the loss's gradient were 1; backward scales the gradients that it
finds. Inductor takes operators apart before its passes. Here only those are taken apart that the pass has no rule for, so that
no other part of the step grows: nothing is fused when it runs. Under torch.compile, too, the pass refuses a step of several
sequences that returns its logits. It is off by default (`torch._inductor.config.auto_chunker`). Two of its thresholds are lower
here: by its own, it would leave a head alone whose result is less than eight times its operands.

Source: torch._inductor.fx_passes.auto_chunker; pytorch issue 124480.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch import fx
from torch.fx.experimental.proxy_tensor import make_fx

from rekindle.bench.methods import NotApplicable
from rekindle.torch.private import fake_mode_of, inductor_config

from .private import auto_chunker, inductor_decompositions

aten = torch.ops.aten
LOSSES = {
    aten._log_softmax.default, aten._log_softmax_backward_data.default, aten.nll_loss_forward.default,
    aten.nll_loss_backward.default,
}  # fmt: skip
# the result is at least so many times as large as the operands together
SETTINGS = {
    "auto_chunker.enable": True, "auto_chunker.output_size_threshold": 0, "auto_chunker.amplify_ratio_threshold": 1,
}  # fmt: skip


def in_chunks(joint: fx.GraphModule) -> fx.GraphModule:
    """The joint graph after the pass; its chunks are plain nodes.

    Raises
    ------
    NotApplicable : this torch has no such pass, or it finds nothing to run in chunks; the message has its reason.
    """
    known = auto_chunker()
    if known is None:
        raise NotApplicable(f"PyTorch {torch.__version__} has no auto_chunker in Inductor")
    chunk, refusal = known
    described = joint.graph.output_node().meta.get("desc")
    try:
        _take_apart(joint)
        with inductor_config.patch(SETTINGS):
            made: fx.GraphModule = chunk(joint)
    except refusal as e:
        raise NotApplicable(f"Inductor's auto_chunker says: {str(e).partition(': %')[0]}") from e
    except RuntimeError as e:  # of a loss with more terms, such as the one that balances experts
        raise NotApplicable(f"Inductor's auto_chunker fails: {str(e).partition(chr(10))[0]}") from e
    if made is joint:
        raise NotApplicable("Inductor's auto_chunker leaves the graph as it is")
    _inline(made)
    made.graph.output_node().meta["desc"] = described
    return made


def _take_apart(joint: fx.GraphModule) -> None:
    """Rewrite a joint graph, in place, to operators that the pass has rules for: losses into elementwise ones, views of views
    into one view or none, transposed matrices into permuted ones; nothing for a detached tensor."""
    graph = joint.graph
    for n in list(graph.nodes):
        if n.target in LOSSES:
            with graph.inserting_before(n):
                _replace_loss(n)
    graph.eliminate_dead_code()
    for n in list(graph.nodes):
        with graph.inserting_before(n):
            if n.target in (aten.detach.default, aten.alias.default):
                n.replace_all_uses_with(n.args[0])
            elif n.target is aten.scalar_tensor.default:
                _replace(n, aten.full.default, ([], n.args[0]), n.kwargs)
            elif n.target is aten.t.default:
                _replace(n, aten.permute.default, (n.args[0], [1, 0]))
            elif n.target in (aten.view.default, aten._unsafe_view.default):
                _replace_view(n)
    graph.eliminate_dead_code()


def _replace(n: fx.Node, target: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
    made = n.graph.call_function(target, args, dict(kwargs or {}))
    made.meta = dict(n.meta)
    n.replace_all_uses_with(made)


def _replace_view(n: fx.Node) -> None:
    """Put one view, or none where the shape is the same, in the place of a view of a view."""
    source: Any = n.args[0]
    inner = source.args[0] if source.target is aten.view.default else source
    shape = n.meta["val"].shape
    if inner.meta["val"].shape == shape:
        n.replace_all_uses_with(inner)
    else:
        _replace(n, aten.view.default, (inner, list(shape)))


def _replace_loss(n: fx.Node) -> None:
    """Put the operators that Inductor makes of a loss in its place, before the node."""
    given = [a for a in n.args if isinstance(a, fx.Node)]

    def call(*tensors: torch.Tensor) -> Any:
        left = iter(tensors)
        return n.target(*[next(left) if isinstance(a, fx.Node) else a for a in n.args], **n.kwargs)  # type: ignore[operator]

    tensors = [a.meta["val"] for a in given]
    mode = fake_mode_of(tensors)
    assert mode is not None
    with mode:
        made = make_fx(call, decomposition_table=inductor_decompositions())(*tensors)
    _paste(n, made, given)


def _inline(gm: fx.GraphModule) -> None:
    """Paste the graph of each chunk in the place of its call, in place."""
    for n in list(gm.graph.nodes):
        if n.target is torch.ops.higher_order.invoke_subgraph:
            body, _, *given = n.args
            with gm.graph.inserting_before(n):
                _paste(n, gm.get_submodule(str(body.target)), given)
    gm.graph.eliminate_dead_code()


def _paste(n: fx.Node, body: Any, given: list[Any]) -> None:
    """Copy the nodes of `body` before `n`, with `given` as its inputs, and let readers of `n` read the copies."""
    holders = [p for p in body.graph.nodes if p.op == "placeholder"]
    out = n.graph.graph_copy(body.graph, dict(zip(holders, given, strict=True)))
    if isinstance(out, fx.Node):
        n.replace_all_uses_with(out)
        return
    assert isinstance(out, tuple | list)
    for u in list(n.users):
        assert u.target is operator.getitem
        u.replace_all_uses_with(out[u.args[1]])  # type: ignore[index, arg-type]

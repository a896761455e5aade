"""torch.compile's `activation_memory_budget` without Inductor: runs the forward and backward graphs of its partitioner.

The captured joint graph goes through torch's `min_cut_rematerialization_partition` under that budget: a share of the memory
that the partitioner would save by default; 0 saves only the graph's inputs. The resulting forward and backward graphs are
interpreted inside one autograd Function, which frees every value after its last use. So the peak and the recomputed operators
are the partitioner's own. Inductor would fuse and reorder operators on top of that, and its peak cannot be predicted.

Three choices favour torch.compile: gradients go to `.grad` as soon as they are computed (in torch.compile they all wait for the
end of backward), an op that draws random numbers may be recomputed (torch.compile replaces it by an op with a seed), and the op
that computes running statistics writes them (in torch.compile they are further results).

Source: torch._functorch.partitioners; H. He, S. Yu, "Transforming Autograd programs", the blog post on min-cut
recomputation; `torch._functorch.config.activation_memory_budget`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from functorch.compile import min_cut_rematerialization_partition
from torch import fx, nn

from rekindle.model.plan import Plan
from rekindle.torch.capture.captured import Captured
from rekindle.torch.private import disable_autocast, functorch_config
from rekindle.torch.run.bound import BoundPlan
from rekindle.torch.situation.module_call import bind
from rekindle.torch.trace import Trace, plain_forward

from .private import graph_module, lazy_graph_modules

Graphs = tuple[fx.GraphModule, fx.GraphModule]
Pass = Callable[[fx.GraphModule], fx.GraphModule]  # over a joint graph


@contextmanager
def compiled(
    model: nn.Module, traced: Trace, plain: Plan, budget: float, before: Pass | None = None
) -> Iterator[bytes]:
    """Inside the context, the model's training step runs the partitioner's graphs.

    Yields a key of the two graphs: different budgets often give equal graphs, and then equal keys.

    plain : a plan of the trace that runs every op once; it says how to build the module's output from tensors.
    budget : `activation_memory_budget`, in [0, 1].
    before : a pass that the joint graph goes through before it is partitioned.
    """
    bound = BoundPlan(model, traced, plain)
    parts = _Partitioned(model, traced.lowered.captured, budget, before)
    bound.runner = parts  # type: ignore[assignment]
    own, plain_one = model.__dict__.get("forward"), plain_forward(model)

    def forward(*args: Any, **kwargs: Any) -> Any:
        return bound(model, bind(plain_one, args, kwargs))

    model.__dict__["forward"] = forward
    try:
        yield parts.key
    finally:
        del model.__dict__["forward"]
        if own is not None:
            model.__dict__["forward"] = own


class _Partitioned:
    """Runs the two graphs: takes one tensor per placeholder of the captured graph, returns the module's results."""

    def __init__(self, model: nn.Module, c: Captured, budget: float, before: Pass | None) -> None:
        self.given = [p for p in c.placeholders if p.op == "placeholder"]
        self.constants = list(c.constants.values())
        self.mutated = [self.given.index(p) for p in c.mutations]
        self.results = len(c.outputs)
        self.dropped = len(_operands(c))
        self.tangents = list(c.tangents.values())
        self.tangent_like = [t.meta["val"] for t in c.tangents]
        self.forward_graph, self.backward_graph = partition(c, budget, before)
        both = [*self.forward_graph.graph.nodes, *self.backward_graph.graph.nodes]
        self.key = str([(n, n.target, n.args, n.kwargs) for n in both]).encode()
        # gradients by position among the inputs: a parameter's goes to .grad as it is computed, an input's is returned
        takers = {i: model.get_parameter(c.params[p]) for i, p in enumerate(self.given) if p in c.params}
        order = [self.given.index(p) for p in c.gradients]
        self.returned = _hand_over(self.backward_graph, [takers.get(i) for i in order], order)

    def __call__(self, inputs: list[torch.Tensor], *_: Any) -> list[torch.Tensor]:
        return list(_Function.apply(self, *inputs))


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, run: _Partitioned, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        with disable_autocast():
            out = list(_run(run.forward_graph, [*inputs, *run.constants]))
        for i in run.mutated:
            inputs[i].copy_(out.pop(0))
        results, saved = out[: run.results], out[run.results + run.dropped :]
        known = {id(t) for t in inputs}
        for i, t in enumerate(results):
            if id(t) in known:  # autograd would take a result that is an input for the same tensor
                results[i] = t.detach()
            known.add(id(t))
        ctx.run, ctx.count = run, len(inputs)
        ctx.save_for_backward(*saved)
        ctx.set_materialize_grads(False)
        ctx.mark_non_differentiable(*[t for i, t in enumerate(results) if i not in run.tangents])
        return tuple(results)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> tuple[Any, ...]:
        run: _Partitioned = ctx.run
        saved = list(ctx.saved_tensors)
        ctx.maybe_clear_saved_tensors()
        tangents = [
            torch.zeros(like.shape, dtype=like.dtype, device=like.device) if grads[i] is None else grads[i]
            for i, like in zip(run.tangents, run.tangent_like, strict=True)
        ]
        del grads
        given = [*saved, *tangents]
        del saved, tangents
        with disable_autocast():
            out = _run(run.backward_graph, given)
        found: list[Any] = [None] * ctx.count
        for i, g in zip(run.returned, out, strict=True):
            found[i] = g
        return (None, *found)


def _run(graph: fx.GraphModule, given: list[Any]) -> Any:
    """Interpret a graph; empties `given` and frees each value after its last use. No graph is ever turned into Python source,
    hence the lazy modules: they save a sixth of the time on DenseNet-169."""
    return fx.Interpreter(graph).boxed_run(given)


def partition(c: Captured, budget: float, before: Pass | None = None) -> Graphs:
    """The partitioner's two graphs under a budget. before : a pass over the joint graph.

    Forward: (inputs, constants) -> (new values of mutated inputs, results, operands of in-place writes, saved values).
    Backward: (saved values, tangents) -> gradients in the order of `c.gradients`.
    """
    with lazy_graph_modules(True), functorch_config.patch(activation_memory_budget=budget):
        joint, names = _joint(c)
        joint = joint if before is None else before(joint)
        made = min_cut_rematerialization_partition(
            joint, None, num_fwd_outputs=len(c.mutations) + len(c.outputs) + len(_operands(c)),
            static_lifetime_input_indices=list(range(len(c.params) + len(c.buffers))),
        )  # fmt: skip
    _write_in_place(made[0], c, names)
    return made[0], made[1]


def _write_in_place(forward: fx.GraphModule, c: Captured, names: dict[fx.Node, str]) -> None:
    """Let the same ops write the module's mutated tensors as in a planned step."""
    graph = forward.graph
    by_name = {n.name: n for n in graph.nodes}
    for n, (target, args) in c.writing.items():
        there = by_name.get(names[n])
        known = {} if there is None else dict(zip(n.args, there.args, strict=True))
        mapped = [known.get(a) or by_name[names[a]] if isinstance(a, fx.Node) else a for a in args]
        if there is None:  # nothing reads the new value: a counter
            with graph.inserting_before(graph.output_node()):
                graph.call_function(target, tuple(mapped), n.kwargs)
        else:
            there.target, there.args = target, tuple(mapped)


def _operands(c: Captured) -> list[fx.Node]:
    """Operands of in-place writes whose results nothing else reads; they must stay in the forward graph."""
    given = {*c.placeholders}
    return [a for n, w in c.writing.items() if all(u.op == "output" for u in n.users)
            for a in w.args if isinstance(a, fx.Node) and a not in given]  # fmt: skip


def _joint(c: Captured) -> tuple[fx.GraphModule, dict[fx.Node, str]]:
    """The captured graph in the form that the partitioner expects (placeholders named primals and tangents, one output), and
    the new name of each captured node."""
    graph = fx.Graph()
    copies: dict[fx.Node, fx.Node] = {}
    for kind, nodes in (("primals", c.placeholders), ("tangents", list(c.tangents))):
        for i, n in enumerate(sorted(nodes, key=lambda n: n in c.constants), 1):
            copies[n] = graph.placeholder(f"{kind}_{i}")
            copies[n].meta = {"val": n.meta["val"]}
    for n in c.nodes:
        copies[n] = graph.node_copy(n, copies.__getitem__)
    wanted = [*c.mutations.values(), *c.outputs, *_operands(c), *c.gradients.values()]
    output = graph.output([copies[n] for n in wanted])
    output.meta["desc"] = [None] * len(wanted)
    return graph_module(torch.nn.Module(), graph), {n: copy.name for n, copy in copies.items()}


def _hand_over(backward: fx.GraphModule, takers: list[nn.Parameter | None], order: list[int]) -> list[int]:
    """Let the backward graph add parameters' gradients to `.grad` as it computes them. Returns the positions, among the inputs,
    of the gradients that the graph still returns."""
    graph = backward.graph
    output = graph.output_node()
    gradients: Any = output.args[0]
    kept, places = [], []
    for g, p, i in zip(gradients, takers, order, strict=True):
        if p is None or not isinstance(g, fx.Node):
            kept.append(g)
            places.append(i)
            continue
        at = g
        if g.op == "placeholder":
            at = [n for n in graph.nodes if n.op == "placeholder"][-1]
        with graph.inserting_after(at):
            graph.call_function(_Taker(p), (g,))
    output.args = (tuple(kept),)
    return places


class _Taker:
    """Adds a gradient to a parameter's `.grad`, as autograd does."""

    def __init__(self, parameter: nn.Parameter) -> None:
        self.parameter = parameter
        self.__name__ = self.__qualname__ = "add_to_grad"
        self.__module__ = __name__

    def __call__(self, gradient: torch.Tensor) -> None:
        if self.parameter.grad is None:
            self.parameter.grad = gradient.clone()
        else:
            self.parameter.grad.add_(gradient)

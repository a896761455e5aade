"""Which nodes of a captured joint graph are forward, and which are backward."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import fx

from ...errors import TraceError
from ..capture.captured import Captured


@dataclass(frozen=True)
class Phases:
    """The nodes of forward and of backward, each in the captured order.

    returned : nodes that a result of the model needs.
    results : nodes that a result or a mutation needs.
    only_for_mutations : forward nodes whose results go only into tensors that the module mutates.
    gradients_wait : whether some gradient depends on one that comes back from the loss.
    """

    forward: list[fx.Node]
    backward: list[fx.Node]
    returned: set[fx.Node]
    results: set[fx.Node]
    only_for_mutations: set[fx.Node]
    gradients_wait: bool


def phases(c: Captured) -> Phases:
    """Forward ends before the first node that belongs to backward; a later node that a result needs is forward too.

    Raises
    ------
    TraceError : a result of the model depends on its own gradient.
    """
    after = depend_on_gradients(c)
    returned = ancestors(c.outputs)
    results = returned | ancestors([*c.mutations.values(), *c.writing])
    if results & after:
        raise TraceError(
            "a result of the model depends on its own gradient; such a step cannot be planned",
            reason="returns a result that depends on its own gradient",
        )
    end = next(
        (i for i, n in enumerate(c.nodes) if n in after or n.meta.get("partitioner_tag") == "is_backward"),
        len(c.nodes),
    )
    forward = [*c.nodes[:end], *(n for n in c.nodes[end:] if n in results)]
    backward = [n for n in c.nodes[end:] if n not in results]
    only = _only_for_mutations(c, forward)
    return Phases(forward, backward, returned, results, only, bool(after & set(c.gradients.values())))


def depend_on_gradients(c: Captured) -> set[fx.Node]:
    """The gradients that come back from the loss, and the nodes that need one of them."""
    return computed_from(c.tangents, c.nodes)


def computed_from(some: Iterable[fx.Node], nodes: Iterable[fx.Node]) -> set[fx.Node]:
    """Some nodes, and those that need one of them. nodes : in order."""
    found = set(some)
    for n in nodes if found else ():
        if any(a in found for a in n.all_input_nodes):
            found.add(n)
    return found


def ancestors(nodes: Iterable[fx.Node | None]) -> set[fx.Node]:
    """These nodes, and those that they need."""
    found: set[fx.Node] = set()
    stack = list(nodes)
    while stack:
        n = stack.pop()
        if isinstance(n, fx.Node) and n not in found:
            found.add(n)
            stack += n.all_input_nodes
    return found


def _only_for_mutations(c: Captured, forward: list[fx.Node]) -> set[fx.Node]:
    """These nodes run once, and read the mutated tensors directly."""
    sinks = {*c.mutations.values(), *c.writing}
    wanted = set(c.outputs) | set(c.gradients.values())
    only: set[fx.Node] = set()
    for n in reversed(forward):
        if n not in wanted and (n in sinks or n.users) and all(u in only or u.op == "output" for u in n.users):
            only.add(n)
    return only

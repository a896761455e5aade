"""Leaves results out of a call that the training loop does not read, by their names.

A name is the key of a dict or a ModelOutput, the field of a dataclass, a named tuple or a plain object, or the index in a tuple
or a list ("1"); dots join the names of nested results ("aux.logits").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import torch

from ...arguments import close
from ...errors import UsageError
from ..tensors import tree
from ..tensors.loss import losses

NAMES_SHOWN_MOST = 8  # in a message; a guess


def without_unused(
    tensors: Sequence[torch.Tensor], spec: Any, unused: Sequence[str], loss: str
) -> tuple[list[torch.Tensor], Any, tuple[str, ...]]:
    """(the tensors of a result that stay, the structure with None in place of the others, the names that fit no result).

    unused : names of results; a name of a container leaves out all that is in it. loss : as in `rekindle.trace`.

    A tensor stays if it also stands at a place that is read.

    Raises
    ------
    UsageError : the loss is left out, or every result from which a gradient could come back.
    """
    found: set[str] = set()
    stays = _without(spec, ("",), frozenset(unused), found)
    kept = sorted({leaf.index for leaf in tree.leaves(stays) if isinstance(leaf, tree.Leaf)})
    named = ", ".join(map(repr, sorted(found)))
    of_loss = losses(tensors, tree.paths(spec)) if loss == "auto" else []
    if of_loss and not set(of_loss) & set(kept):
        raise UsageError(
            f"unused: {named} is the loss, from which backward starts; name results that the training loop does not read"
        )
    trains = any(t.requires_grad for t in tensors)
    if found and not (any(tensors[i].requires_grad for i in kept) if trains else kept):
        raise UsageError(
            f"unused: without {named} no result is left from which backward could start; name only results that the training "
            "loop does not read"
        )
    places = {i: tree.Leaf(k) for k, i in enumerate(kept)}
    return [tensors[i] for i in kept], _renumbered(stays, places), tuple(n for n in unused if n not in found)


class TakenApart(NamedTuple):
    """A result of forward as tensors and their structure.

    fills : the caller's containers that forward changed, as it left them. no_results : names in `unused` that fit no result.
    of_result : number of the tensors that the result holds; those that the caller's containers alone hold follow.
    """

    tensors: list[torch.Tensor]
    spec: Any
    fills: list[tree.Branch]
    no_results: tuple[str, ...]
    of_result: int


def taken_apart(result: Any, owned: Mapping[int, tree.Owned], unused: Sequence[str], loss: str) -> TakenApart:
    """The result without what is unused, and what forward put into the caller's containers. owned : these, by id."""
    tensors, spec = tree.flatten(result, True, owned)
    kept, no_results = tensors, tuple(unused)
    if unused:  # first of all, so that nothing of the graph reads them
        kept, spec, no_results = without_unused(tensors, spec, unused, loss)
    of_result, fills = len(kept), []
    gone = {id(t) for t in tensors} - {id(t) for t in kept}
    for x in owned.values():
        if x.is_changed:
            kept, made = tree.flatten(x.container, True, owned, kept, gone)
            fills.append(made)
    return TakenApart(kept, spec, fills, no_results, of_result)


def no_such_results(names: Sequence[str], spec: Any, module_name: str) -> UsageError:
    """The error for names that fit no result. spec : the structure of the result."""
    known = [*dict.fromkeys(_names(spec))]
    if not known:
        return UsageError(
            f"unused: {names[0]!r} names no result of {module_name}, which returns one tensor and no container"
        )
    few = ", ".join(known[:NAMES_SHOWN_MOST]) + (", …" if len(known) > NAMES_SHOWN_MOST else "")
    return UsageError(
        f"unused: {names[0]!r} names no result of {module_name}; {close(names[0], known)}its results are {few}"
    )


def as_if_left_out(result: Any, unused: Sequence[str]) -> Any:
    """The result of a plain call with None where `unused` names a result: the value that a planned call returns."""
    if not unused:
        return result
    tensors, spec = tree.flatten(result, opaque_ok=True)
    return tree.unflatten(tensors, _without(spec, ("",), frozenset(unused), set()))


def _without(spec: Any, at: tuple[str, ...], names: frozenset[str], found: set[str]) -> Any:
    """The structure with `LeftOut` at the named places. at : the names of its own place; the names that fit are put into
    `found`."""
    here = names & set(at)
    found |= here
    if isinstance(spec, tree.Branch):
        children = tuple([_without(c, _joined(at, own), names, found) for own, c in _children(spec)])
        spec = replace(spec, children=children)
    # Numbers and None take no memory, so they stay.
    holds_tensors = any(isinstance(leaf, tree.Leaf | tree.Opaque | tree.LeftOut) for leaf in tree.leaves(spec))
    return tree.LeftOut() if here and holds_tensors else spec


def _children(branch: tree.Branch) -> Iterator[tuple[tuple[str, ...], Any]]:
    """(names, structure) of what stands in a container. In a named tuple, a place has a name and a number."""
    kind = branch.like if isinstance(branch.like, type) else type(branch.like)
    fields = getattr(kind, "_fields", ()) if branch.keys is None else ()
    for i, child in enumerate(branch.children):
        own = str(i) if branch.keys is None else str(branch.keys[i])
        yield ((fields[i], own) if i < len(fields) else (own,)), child


def _joined(at: tuple[str, ...], own: tuple[str, ...]) -> tuple[str, ...]:
    return tuple([f"{a}.{o}" if a else o for a in at for o in own])


def _names(spec: Any, at: str = "") -> Iterator[str]:
    """A name for each place where a result stands, also for places that are left out."""
    if isinstance(spec, tree.Branch):
        for own, child in _children(spec):
            yield from _names(child, _joined((at,), own)[0])
    elif at and isinstance(spec, tree.Leaf | tree.Opaque | tree.LeftOut):
        yield at


def _renumbered(spec: Any, places: dict[int, tree.Leaf]) -> Any:
    if isinstance(spec, tree.Leaf):
        return places[spec.index]
    if isinstance(spec, tree.Branch):
        return replace(spec, children=tuple([_renumbered(c, places) for c in spec.children]))
    return spec

"""Makes the rewritten step of a captured one, as a plan's `Rewrite`s say."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from ...errors import PlanMismatch
from ...model import rewriting as kinds
from ...model.rewriting import Rewrite
from ..capture.captured import Captured
from ..lowering.editing import Editor, without_aliases
from ..lowering.phases import depend_on_gradients
from ..operators import rules
from ..operators.node_tensors import is_member, is_view
from .cuts import Cut, cuts_of
from .probe import Bits
from .region import Region, handed_over_whole, units
from .slices import cut_into_slices
from .unsliced import UNSLICED


def rewritten(captured: Captured, steps: Sequence[Rewrite], bits: Bits | None = None) -> Captured:
    """The captured step with these rewrites. The given one stays as it is.

    bits : proves of ops in slices that they give the same bits; those of which it does not are marked (see `closeness`). None:
        nothing is proven, and slices count as the same.

    Raises
    ------
    PlanMismatch : the step has no such ops.
    """
    captured = without_aliases(captured)
    for step in steps:
        captured = after(captured, step, bits, copy=False)
    return captured


def after(captured: Captured, step: Rewrite, bits: Bits | None = None, copy: bool = True) -> Captured:
    """The step after one rewrite more; see `rewritten`. copy=False: the nodes of the given step are edited, so that it is
    of no use afterwards."""
    if not all(0 <= i < len(captured.nodes) for i in step.ops):
        raise PlanMismatch(_WRONG)
    edit = Editor(captured, copy)
    nodes = [edit.captured.nodes[i] for i in step.ops]
    try:
        unproven = _unproven(captured, step, bits) if step.kind == kinds.SLICES else frozenset()
        with edit.at_work():
            if step.kind == kinds.SLICES:
                _slices(edit, nodes, step, unproven)
            else:
                way = UNSLICED[step.kind]
                if not all(map(way.may, nodes)):
                    raise ValueError(f"an op is no {way.of}")
                way.rewrite(edit, nodes)
        drawn = _random_ops(edit.captured)
        made = edit.finish()
        if _random_ops(made) != drawn:
            raise ValueError("random ops would draw in another order")
    except Exception as e:  # steps from a file may name any ops, and kernels of fake tensors raise errors of many kinds
        raise PlanMismatch(f"{_WRONG} ({e})") from None
    return made


def _random_ops(c: Captured) -> list[fx.Node]:
    """The ops that draw random numbers, in order."""
    return [n for n in c.nodes if rules.draws_random(n.target)]


def _slices(edit: Editor, nodes: list[fx.Node], step: Rewrite, unproven: frozenset[int]) -> None:
    cuts = _cuts(nodes, step)
    _check_additions(edit.captured, nodes)
    kept, loose = (
        frozenset(n for n, i in zip(nodes, step.ops, strict=True) if i in at) for at in (set(step.kept), unproven)
    )
    late = depend_on_gradients(edit.captured)
    if any(n in edit.captured.writing or not (is_view(n) or n in late) for n in kept):
        raise ValueError("an op that forward runs once would run twice")
    cut_into_slices(edit, Region(cuts, step.slices, kept, loose))


def _cuts(nodes: Sequence[fx.Node], step: Rewrite) -> dict[fx.Node, Cut]:
    """How each op is cut, as the rewrite says."""
    cuts = {}
    for n, (ins, outs) in zip(nodes, step.cuts, strict=True):
        known = [c for c in cuts_of(n) if (c.ins, c.outs) == (ins, outs)]
        if not known or is_member(n):  # a member of a result is cut as its op is
            raise ValueError(f"{n.target} cannot be cut so")
        cuts[n] = known[0]
    if units(cuts) < step.slices:
        raise ValueError("there are too many slices")
    return cuts


def _check_additions(captured: Captured, nodes: Sequence[fx.Node]) -> None:
    if not handed_over_whole(captured).isdisjoint(nodes):
        raise ValueError("a gradient's parts are handed over whole")


def _unproven(captured: Captured, step: Rewrite, bits: Bits | None) -> frozenset[int]:
    """Places of the ops whose slices are not proven to give the same bits. They run, so no editor may be at work."""
    if bits is None:
        return frozenset()
    cuts = _cuts([captured.nodes[i] for i in step.ops], step)
    size = units(cuts)
    same = [bits.same_beside_sums(n, c, step.slices, size) for n, c in cuts.items()]
    return frozenset(i for i, proven in zip(step.ops, same, strict=True) if not proven)


_WRONG = "the plan rewrites ops that this step does not have; make the plan again"

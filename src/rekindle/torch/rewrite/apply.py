"""Makes the rewritten step of a captured one, as a plan's `Rewrite`s say."""

from __future__ import annotations

from collections.abc import Sequence

from torch import fx

from ...errors import PlanMismatch
from ...model import rewriting as kinds
from ...model.rewriting import Rewrite
from ..capture.captured import Captured
from .convolutions import in_two_calls, may_split
from .cuts import cuts_of
from .editing import Editor
from .picked import may_pick, pick_first
from .region import Region, units
from .saves import save_less, saves
from .slices import cut_into_slices


def rewritten(captured: Captured, steps: Sequence[Rewrite]) -> Captured:
    """The captured step with these rewrites. The given one stays as it is.

    Raises
    ------
    PlanMismatch : the step has no such ops.
    """
    for step in steps:
        captured = _after(captured, step)
    return captured


def _after(captured: Captured, step: Rewrite) -> Captured:
    """The step after one rewrite."""
    if not all(0 <= i < len(captured.nodes) for i in step.ops):
        raise PlanMismatch(_WRONG)
    edit = Editor(captured)
    nodes = [edit.captured.nodes[i] for i in step.ops]
    try:
        with edit.at_work():
            _REWRITES[step.kind](edit, nodes, step)
    except (ValueError, KeyError) as e:
        raise PlanMismatch(f"{_WRONG} ({e})") from e
    return edit.finish()


def _convolutions(edit: Editor, nodes: list[fx.Node], step: Rewrite) -> None:
    if not all(map(may_split, nodes)):
        raise ValueError("an op is no backward of a convolution")
    in_two_calls(edit, nodes)


def _saves(edit: Editor, nodes: list[fx.Node], step: Rewrite) -> None:
    if any(saves(n) is None for n in nodes):
        raise ValueError("an op reads nothing for which there is a smaller save")
    save_less(edit, nodes)


def _picked(edit: Editor, nodes: list[fx.Node], step: Rewrite) -> None:
    for n in nodes:
        if not may_pick(n):
            raise ValueError("an op is no loss over rows")
        pick_first(edit, n)


def _slices(edit: Editor, nodes: list[fx.Node], step: Rewrite) -> None:
    cuts = {}
    for n, (ins, outs) in zip(nodes, step.cuts, strict=True):
        known = [c for c in cuts_of(n) if (c.ins, c.outs) == (ins, outs)]
        if not known:
            raise ValueError(f"{n.target} cannot be cut so")
        cuts[n] = known[0]
    if units(cuts) < step.slices:
        raise ValueError("there are too many slices")
    kept = frozenset(n for n, i in zip(nodes, step.ops, strict=True) if i in set(step.kept))
    cut_into_slices(edit, Region(cuts, step.slices, kept))


_REWRITES = {kinds.CONVOLUTIONS: _convolutions, kinds.SAVES: _saves, kinds.PICKED: _picked, kinds.SLICES: _slices}
_WRONG = "the plan rewrites ops that this step does not have; make the plan again"

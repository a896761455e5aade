"""Makes the rewritten step of a captured one, as a plan's `Rewrite`s say, and its trace."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import fx

from ...errors import ParityError, PlanMismatch
from ...model import rewriting as kinds
from ...model.op_names import op_words
from ...model.plan import Plan
from ...model.rewriting import Rewrite
from ..capture.captured import Captured
from ..lowering.editing import Editor, without_aliases
from ..lowering.normalise import lower
from ..lowering.phases import depend_on_gradients
from ..operators import rules
from ..operators.node_tensors import is_member, is_view, tensors_of
from ..trace import Trace
from .closeness import marked, sums
from .cuts import Cut, cuts_of
from .probe import Bits
from .region import Region, handed_over_whole, units
from .slices import cut_into_slices
from .unsliced import UNSLICED

_WRONG = "the plan rewrites ops that this step does not have; make the plan again"


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
        region = _region(edit.captured, nodes, step, bits) if step.kind == kinds.SLICES else None
        with edit.at_work():
            if region is not None:
                cut_into_slices(edit, region)
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


def _region(c: Captured, nodes: list[fx.Node], step: Rewrite, bits: Bits | None) -> Region:
    """The region that a rewrite names. Bits are proven by a run of its ops, so no editor may be at work."""
    cuts = _cuts(nodes, step)
    if not handed_over_whole(c).isdisjoint(nodes):
        raise ValueError("a gradient's parts are handed over whole")
    kept, late = frozenset(c.nodes[i] for i in step.kept if i in step.ops), depend_on_gradients(c)
    if any(n in c.writing or not (is_view(n) or n in late) for n in kept):
        raise ValueError("an op that forward runs once would run twice")
    size = units(cuts)
    unproven = {n for n, cut in cuts.items() if bits and not bits.same_beside_sums(n, cut, step.slices, size)}
    return Region(cuts, step.slices, kept, frozenset(unproven))


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


# -- traces -----------------------------------------------------------------------------------------------------------
def with_rewrites(traced: Trace, steps: Sequence[Rewrite], bits: Bits | None = None) -> Trace:
    """The trace of the step with these rewrites, without costs. bits : as in `rewritten`.

    Raises
    ------
    PlanMismatch : the step has no such ops.
    """
    return with_captured(traced, rewritten(traced.lowered.captured, steps, bits))


def with_captured(traced: Trace, captured: Captured) -> Trace:
    """The trace with another captured step in place of its own, without costs."""
    how = traced.options
    made = lower(captured, traced.graph.name, traced.graph.resident_bytes, how.must_save, how.gradients)
    return replace(traced, graph=made.graph, lowered=made, origin=traced.as_captured)


def rewritten_like(traced: Trace, plan: Plan, bits: Bits | None = None) -> Trace:
    """The trace with the plan's rewrites, or as it is where they do not fit it."""
    if plan.rewriting is None:
        return traced
    try:
        return with_rewrites(traced, plan.rewriting.steps, bits)
    except PlanMismatch:
        return traced


def as_planned(traced: Trace, plan: Plan) -> Trace:
    """The trace whose graph is the plan's: this one, or this one with the plan's rewrites.

    Raises
    ------
    PlanMismatch : the plan is for another step.
    """
    made = traced if traced.graph.hash == plan.graph_hash else fitting(traced, plan)
    if made is None:
        raise PlanMismatch(
            f"the plan is for graph {plan.graph_hash[:12]}, and this step has graph {traced.graph.hash[:12]}; make it again"
        )
    return made


def fitting(traced: Trace, plan: Plan) -> Trace | None:
    """The trace whose graph is the plan's: this one, or this one with the plan's rewrites; None: the plan is for another step.
    Of ops in slices it is proven, by running them, that they give the same bits here.

    Raises
    ------
    ParityError : an op in slices is not proven to, and the plan's parity is bitwise.
    """
    if plan.rewriting is None:
        return traced if traced.graph.hash == plan.graph_hash else None
    if traced.graph.hash != plan.rewriting.captured_hash:
        return None
    # A plan that was made here with tensors was proven when it was made, on the device on which it was traced.
    made_here = plan.trace is not None and not plan.trace.fake and _devices(plan.trace) == _devices(traced)
    bits = Bits() if plan.rewriting.slices and not traced.fake and not made_here else None
    return _checked(rewritten_like(traced, plan, bits), plan, bits)


def _devices(traced: Trace) -> set[torch.device]:
    """The devices of the tensors that the caller holds."""
    return {t.device for p in traced.lowered.captured.placeholders for _, t in tensors_of(p)}


def proven_here(traced: Trace, plan: Plan) -> Trace:
    """The trace of a plan that was made without tensors, for a module that has some: its ops in slices are proven now.

    Raises
    ------
    ParityError : as `fitting`.
    """
    if plan.rewriting is None or not plan.rewriting.slices:
        return traced
    bits = Bits()
    return _checked(rewritten_like(traced.as_captured, plan, bits), plan, bits) or traced


def _checked(made: Trace, plan: Plan, bits: Bits | None) -> Trace | None:
    """The rewritten trace if it is the plan's, its bits checked where that is asked for. bits : has proven some."""
    if bits is not None:
        bits.save()
    if made.graph.hash != plan.graph_hash:
        return None
    if bits is not None and plan.options.parity == "bitwise":
        _check_bits(made)
    return made


def with_sums_here(plan: Plan, traced: Trace) -> Plan:
    """The plan, with the names of the parameters whose gradients may differ by rounding on this device. traced : its step."""
    if plan.rewriting is None:
        return plan
    return replace(plan, rewriting=replace(plan.rewriting, sums=sums(traced.lowered.captured)))


def _check_bits(traced: Trace) -> None:
    """Raise ParityError where an op in slices is not proven to give the bits of the whole op."""
    wrong = marked(traced.lowered.captured)
    if not wrong:
        return
    words = next(op_words(o) for o, c in zip(traced.graph.ops, traced.lowered.calls, strict=True) if c.node in wrong)
    raise ParityError(
        f"the plan runs {words} and others in slices, which are not proven to give the bits of the whole op on this device. "
        f"Plan {traced.module_name} on this device, or make a plan with parity='close', which admits results that are equal up "
        "to rounding"
    )

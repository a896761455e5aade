"""The words of a plan's certificate: they claim what was proven, and say where a file claims it."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from ..saying.shares import COST_WORDS, percent, percent_down
from ..saying.sizes import format_bytes, of_bytes
from .op_names import op_words_of
from .rewriting import STEP

if TYPE_CHECKING:
    from ..ask import Goal
    from .plan import Plan
    from .resident import HoldsResident

# Of the step, above what is proven: from there on a longer search is likely to gain 1 % of it. Measured on a dozen models.
LONGER_PAYS_SHARE = 0.1
LEAST_SAID = 1e-3  # a bound on the extra cost below 0.1 % says nothing
AT_BEST, AT_BEST_EXTRA = "peak at best, at this cost", "  at best, in this budget"  # labels of the bounds in tables


def sentence(plan: Plan) -> str:
    """One plain sentence: does the plan fit, at what price, what is proven, what smaller peak is known.

    "fits: 21.4 of 24.0 GiB, +11.0 % step time (proven: at least +8.0 %), smallest reachable about 14.0 GiB, solved in 3.1 s"

    Of a rewritten step it says so, and for which step the proof holds: "+2.2 % step time, with 18 smaller saves and 29 ops in
    8 slices (proven: at least +0.1 % for this rewritten step)".
    """
    limit = plan.limit
    price = f"{percent(plan.overhead)} {COST_WORDS[plan.cost]}"
    if limit is None:
        missed = plan.options.missed(plan.goal)
        takes = takes_words(missed, plan.peak_bytes, plan.graph, plan.baseline_activation_bytes)
        parts = [takes, price, *_rewritten(plan), peak_claim(plan)]
    else:
        parts = [f"fits: {of_bytes(plan.peak_bytes, limit)}", price, *_rewritten(plan)]
        if plan.goal.fraction is not None and plan.baseline_measured:
            parts[0] += (
                f" ({plan.goal.fraction:g} of the {format_bytes(plan.baseline_activation_bytes)} that eager took)"
            )
        parts[-1] += f" ({claim})" if (claim := cost_claim(plan)) else ""
        parts += longer_words(plan)
        parts += offer_words(plan.offer, plan.goal, plan.graph, plan.baseline_activation_bytes)
    if plan.moved_bytes:
        parts.append(f"copying {format_bytes(plan.moved_bytes)} to the host and back")
    if plan.smallest_known_bytes is not None:
        parts.append(f"smallest reachable about {format_bytes(plan.smallest_known_bytes)} for more time")
    parts.append(f"solved in {plan.solve_seconds:.1f} s")
    left_out = getattr(plan.trace, "not_counted", "") if plan.goal.budget is not None else ""
    saved = getattr(plan.trace, "saved", "")
    tail = f"; not counted: {left_out}" if left_out else ""
    return ", ".join(parts) + tail + (f"; gradients count from the start of the step: {saved}" if saved else "")


def takes_words(missed: Goal | None, peak: int, step: HoldsResident, plain: int) -> str:
    """The beginning of the sentence of a plan whose goal is no budget: "takes 21.4 GiB".

    missed : the budget in place of which it was made; then "budget not met: takes 21.4 GiB, the least that was found, where
        18.0 GiB were asked".
    plain : the activation peak of the plain step.
    """
    limit = None if missed is None else missed.limit(step, plain)
    if limit is None:
        return f"takes {format_bytes(peak)}"
    beside = " beside the results that a loop holds" if peak <= limit else ""
    takes = f"takes {format_bytes(peak)}{beside}, the least that was found"
    return f"budget not met: {takes}, where {format_bytes(limit)} were asked"


def longer_words(plan: Plan) -> list[str]:
    """The advice 'effort="thorough" may find a cheaper plan'; [] where a longer search gains little, or was made."""
    if (plan.solver, plan.options.effort) != ("auto", "normal") or plan.status == "optimal":
        return []
    pays = plan.overhead - plan.least_overhead >= LONGER_PAYS_SHARE
    return ['effort="thorough" may find a cheaper plan'] if pays else []


def offer_words(offer: tuple[int, float] | None, goal: Goal, step: HoldsResident, plain: int) -> list[str]:
    """ "the curve is steep here: budget=0.6 costs about +19.0 %"; [] without an offer.

    plain : the activation peak of the plain step.
    """
    if offer is None:
        return []
    share = math.ceil(1e3 * step.beside_resident(offer[0]) / plain) / 1e3
    budget = f"budget={share:g}" if goal.fraction is not None else f"budget={offer[0]} ({format_bytes(offer[0])})"
    return [f"the curve is steep here: {budget} costs about {percent(offer[1])}"]


def cost_claim(plan: Plan) -> str:
    """The proven bound on the extra cost of plans within the budget: "proven: at least +8.0 %"; "" for a verified 0."""
    if plan.status == "optimal":
        return f"proven the least{_of(plan)}" if plan.verified else f"its file says the least{_of(plan)}: not verified"
    if plan.least_overhead < LEAST_SAID:
        return "" if plan.verified else "its file's figures are not verified"
    least = f"at least {percent_down(plan.least_overhead)}{_of(plan)}"
    return f"proven: {least}" if plan.verified else f"its file says {least}: not verified"


def peak_claim(plan: Plan) -> str:
    """The proven bound on the peak of plans at this cost: "no schedule with at most +9.8 % goes below 3.1 GiB"."""
    if plan.status == "optimal":
        smallest = f"the smallest{_of(plan)}"
        return f"proven {smallest}" if plan.verified else f"its file says {smallest}: not verified"
    bound = (
        f"no schedule{_of(plan)} with at most {percent_down(plan.overhead)} goes below {format_bytes(plan.bound_bytes)}"
    )
    return bound if plan.verified else f"its file says {bound}: not verified"


def bound_words(plan: Plan, with_op: bool = True) -> str:
    """The bound on the peak of plans at the plan's cost, and the op that sets it: the value of a table's row."""
    setter = f", set by {op_words_of(plan.graph, plan.bound_op)}" if plan.bound_op and with_op else ""
    scope = _of(plan, ",")
    return f"{format_bytes(plan.bound_bytes)}{setter}{scope}{plan.doubt}"


def splitting_claim(plan: Plan) -> str:
    """The op that by itself needs the plan's peak: the value of a table's row; see `Plan.splitting_op`."""
    return f"{plan.splitting_words}: it alone needs that much{_of(plan, ',')}"


def least_cost_words(plan: Plan) -> str:
    """The bound on the extra cost within the budget: the value of a table's row; "" where it is 0 or the goal no budget."""
    if not plan.goal.is_budget or plan.least_overhead < LEAST_SAID:
        return ""
    return f"{percent_down(plan.least_overhead)} {COST_WORDS[plan.cost]}{_of(plan, ',')}{plan.doubt}"


def _of(plan: Plan, mark: str = "") -> str:
    """For which step a claim holds, where that is not the captured one. mark : what stands before it."""
    return "" if plan.rewriting is None else f"{mark} for {STEP}"


def _rewritten(plan: Plan) -> list[str]:
    return [] if plan.rewriting is None else [f"with {plan.rewriting.clause()}"]

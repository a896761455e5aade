"""The words of planning in parts: which parts are planned, and the errors."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

from torch import nn

from ...errors import InfeasibleBudget, ParityError, RekindleError, TraceError, UsageError
from ...planning.infeasible import budget_words
from ...saying.frames import users_line
from ...saying.sizes import format_bytes
from ..compiled.stage import Stage
from ..tensors.sharded import class_name

if TYPE_CHECKING:
    from ..ways.finding import Unit

log = logging.getLogger("rekindle")
LINE_MOST = 105  # letters of the line, up to which it names one more reason; then it says how many more there are


def covered(
    model: nn.Module, units: Sequence[Unit], share: float, plain: Sequence[str], of_eager: float | None = None
) -> str:
    """The line, such as "planned: 24 of 24 OPTDecoderLayer (96 % of activation bytes); plain: OPTDecoder (train.py:88
    reads a tensor)".

    units : those that do not run plain. share : of the plain step's bytes between forward and backward that they hold.
    plain : what runs as it is, and why. of_eager : the time of a step of all compiled parts, as a share of that without the
        compiler; 0: it is not known; None: no part is compiled.
    """
    every = Counter(class_name(m) for m in model.modules())

    def kinds(again: bool) -> str:
        modules = {u.path: u.module for u in units if (u.trace is None) == again}
        counts = Counter(class_name(m) for m in modules.values())
        return " and ".join(f"{n} of {every[k]} {k}" for k, n in counts.items())

    if of_eager is not None:
        stages = [u for u in units if isinstance(u.module, Stage)]
        which = f"{len(stages)} stages of {class_name(model)}" if stages else kinds(True) or "nothing"
        text = f"compiled: {which} ({round(100 * share)} % of activation bytes"
        text += f", {of_eager:.2f} of their uncompiled time)" if of_eager else ")"
    else:
        text = "planned: " + (kinds(False) or "nothing")
        if again := kinds(True):
            text += f", run again in backward: {again}"
        text += f" ({round(100 * share)} % of activation bytes)"
    reasons = list(dict.fromkeys(plain))
    for i, reason in enumerate(reasons):
        if i and len(text) + len(reason) > LINE_MOST:
            log.info("plain: %s", ", ".join(reasons))
            return f"{text} and {len(reasons) - i} more"
        text += f"; plain: {reason}" if not i else f", {reason}"
    return text


# -- errors ------------------------------------------------------------------------------------------------------------
def infeasible(
    name: str, budget: int, peak: int, outside: int, resident: int, whole: TraceError | None
) -> InfeasibleBudget:
    """No division keeps the budget. All are bytes of the whole step.

    name : class of the model. peak : the smallest that is known to be reachable. outside : the most that is held outside of the
    parts. resident : held during the whole step. whole : why the whole model cannot be captured.
    """
    why = "" if whole is None else f". As a whole the model cannot be planned because {whole}"
    return InfeasibleBudget(
        f"{budget_words(budget)} cannot be kept by planning the parts of {name}: the smallest peak "
        f"that is known to be reachable is {format_bytes(peak)} ({peak} bytes); {format_bytes(outside)} are held outside of "
        f"the parts at some time. The model is as it was. Give budget={peak}, or_least=True, a smaller batch, or write the "
        f"code outside of the parts so that the whole model can be captured{why}",
        budget=budget, smallest_peak=peak, bound_bytes=resident, op="",
    )  # fmt: skip


def nothing(plain: Sequence[str], whole: TraceError | None, compiled: bool = False) -> RekindleError:
    """No part can be planned with a gain. plain : what runs as it is, and why. whole : as `infeasible`."""
    tried = f": {', '.join(dict.fromkeys(plain))} run plain" if plain else ""
    if compiled:
        return UsageError(
            f"compile=True: no part can be compiled with a gain{tried}. Leave `compile` out, or name others in `parts`"
        )
    if whole is not None:
        return TraceError(
            f"{str(whole).rstrip('.')}. No part of the model can be planned by itself with a gain either{tried}"
        )
    return UsageError(
        f"parts: no plan for the named submodules saves memory{tried}; name larger ones, such as the blocks of the model"
    )


def fails(name: str, e: RekindleError, whole: TraceError | None) -> TraceError:
    """A step with planned parts fails. name, whole : as `infeasible`."""
    _, line = users_line(e)
    at = f" at {line}" if line else ""
    why = "" if whole is None else f". As a whole it cannot be planned because {whole}"
    return TraceError(f"a step of {name} with planned parts fails{at}: {e}{why}")


def differs(differences: Sequence[str], cause: str, whole: TraceError | None) -> ParityError:
    """A step with planned parts gives other numbers. cause : why, in words. whole : as `infeasible`."""
    why = "" if whole is None else f"As a whole the model cannot be planned because {str(whole).rstrip('.')}. "
    return ParityError(
        f"the step with planned parts does not give the plain step's numbers: {'; '.join(differences)}. {cause}. {why}"
        "The model is as it was; check=False trains without the comparison"
    )

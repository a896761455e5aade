"""The errors of planning a model's parts."""

from __future__ import annotations

from collections.abc import Sequence

from ...errors import InfeasibleBudget, ParityError, RekindleError, TraceError, UsageError
from ...frames import users_line
from ...sizes import format_bytes


def infeasible(
    name: str, budget: int, peak: int, outside: int, resident: int, whole: TraceError | None
) -> InfeasibleBudget:
    """No division keeps the budget. All are bytes of the whole step.

    name : class of the model. peak : the smallest that is known to be reachable. outside : the most that is held outside of the
    parts. resident : held during the whole step. whole : why the whole model cannot be captured.
    """
    why = "" if whole is None else f". As a whole the model cannot be planned because {whole}"
    return InfeasibleBudget(
        f"budget {format_bytes(budget)} ({budget} bytes) cannot be kept by planning the parts of {name}: the smallest peak "
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

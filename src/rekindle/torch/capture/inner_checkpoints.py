"""Refuses forwards inside of which torch.utils.checkpoint changes what a step does, beside the memory that it takes."""

from __future__ import annotations

from torch import fx

from ...errors import TraceError
from ...frames import in_short
from ..operators import rules
from ..situation.module_paths import printable
from .flat import FlatForward, Inner

NAMES_MOST = 2  # of tensors, in a message


def refusal(flat: FlatForward, found: fx.Graph | Exception) -> TraceError | None:
    """Why no graph stands for eager's step, because of torch.utils.checkpoint inside of forward; None: it changes nothing.

    found : the joint graph, or the error that ended the attempt. A captured backward runs no forward again, so the graph does
    once what forward does.
    """
    if isinstance(found, Exception):
        inner = next(iter(flat.checkpoints), None)
        if inner is None or "torch.utils.checkpoint is incompatible" not in str(found):  # torch's words
            return None
        return _error(
            inner, "with use_reentrant=True", "", "such a backward cannot be captured", ", or give use_reentrant=False"
        )
    draws = any(n.op == "call_function" and rules.draws_random(n.target) for n in found.nodes)
    for inner in flat.checkpoints:
        if inner.written:
            names = ", ".join(map(printable, inner.written[:NAMES_MOST]))
            more = f" and {len(inner.written) - NAMES_MOST} more" if len(inner.written) > NAMES_MOST else ""
            why = f"so each step writes to {names}{more} twice: in forward, and where backward runs it again. A plan would once"
            effect = f", which writes to {names} again in backward"
            return _error(inner, "", effect, why, "; each step then writes once")
        if draws and not inner.preserves:
            why = "so backward draws other random numbers than forward. A plan draws the same"
            return _error(inner, "with preserve_rng_state=False", "", why, ", or give preserve_rng_state=True")
    return None


def _error(inner: Inner, how: str, effect: str, why: str, instead: str) -> TraceError:
    called = f"torch.utils.checkpoint {how}".rstrip()
    return TraceError(
        f"forward runs {called} at {inner.line or 'an unknown line'}, and {why}. Switch that checkpointing off "
        "(use_checkpoint=False, memory_efficient=False, gradient_checkpointing_disable() or the like), since Rekindle itself "
        f"decides what runs again{instead}",
        reason=f"runs {called}{effect}", line=in_short(inner.line),
    )  # fmt: skip

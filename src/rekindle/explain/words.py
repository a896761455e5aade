"""The peak of a plan in sentences: which op, who holds most, and the remedy where one is known."""

from __future__ import annotations

from ..model.floor import working_set
from ..model.graph import Graph
from ..model.op_names import op_words, operator_name
from ..model.rewriting import STEP, Rewriting
from ..printed import name
from ..saying.sizes import format_bytes, of_bytes
from .holding import FETCHED, FORWARD, GRADIENT, RECOMPUTED, RESIDENT, RUNNING, SAVED, WORKSPACE, Held, Holder, Peak
from .loss import dimensions, loss_and_gradients, scores_ops

# From which share of the bytes beside the resident ones on a holder is worth a sentence. All are guesses.
LOSS_LEAST_SHARE = 0.25
SCORES_LEAST_SHARE = 0.1
WORKSPACE_LEAST_SHARE = 0.2
RESIDENT_LEAST_SHARE = 0.5  # of all bytes
FLOOR_MOST = 1.02  # the peak is at most so many times the bytes that one op needs alone
MATH_KERNEL = "_safe_softmax"  # an operator that scaled_dot_product_attention alone calls, where no fused kernel serves
AT_THE_LOSS, REWRITTEN = "The peak is the loss", "Rewritten:"
ROLES = {
    RUNNING: "made by the op that runs", GRADIENT: "gradients", SAVED: "saved for backward", RECOMPUTED: "recomputed",
    FORWARD: "made by forward", WORKSPACE: "its workspace", FETCHED: "fetched from the host",
}  # fmt: skip


def remarks(
    graph: Graph,
    plain: Peak,
    planned: Peak,
    largest: list[Holder],
    loss: frozenset[int],
    state_bytes: int | None,
    rewriting: Rewriting | None = None,
) -> tuple[str, ...]:
    """Sentences about the planned peak, the most telling first.

    largest : the holders at the planned peak. loss : the ops of the loss.
    state_bytes : of the optimizer's state, within the resident bytes; None: not counted.
    rewriting : how the graph was made from a captured step; `plain` is then the peak of the rewritten step, each op once.
    """
    step = "" if rewriting is None else f" of {STEP}"
    found = [_where(graph, plain, planned, step)]
    own = graph.beside_resident(planned.bytes)
    found += _loss(graph, planned, loss, own, remedy=rewriting is None or not rewriting.slices)
    found += _scores(graph, planned, own)
    found += _workspace(graph, planned, own)
    most = next((h for h in largest if h.role != RESIDENT), None)
    if most is not None and not found[-1].startswith(AT_THE_LOSS):
        held = f"{name(most.words)}: {_bytes(most)}, {ROLES[most.role]}"
        found.insert(1, f"The largest holder of activations is {held}.")
    found += _floor(graph, planned, own, step)
    found.append(_copies(graph, planned))
    found += [] if rewriting is None else [f"{REWRITTEN} {rewriting.line()}."]
    found.append(resident_words(graph.resident_bytes, planned.bytes, state_bytes))
    return tuple(sentence for sentence in found if sentence)


def peak_place(graph: Graph, p: Peak) -> str:
    """Where a peak is: "in backward, at lm_head (mm, f32[8192,1024])"."""
    if p.op is None:
        return "where nothing runs"
    if p.op == graph.boundary:
        return "at the end of forward"
    op = graph.ops[p.op]
    phase = "in backward" if p.backward else "in forward"
    return f"{phase}, at {op_words(op)}{' (run again)' if p.again and not op.backward else ''}"


def _where(graph: Graph, plain: Peak, planned: Peak, step: str) -> str:
    before, after = peak_place(graph, plain), peak_place(graph, planned)
    if plain.op is None and planned.op is None:
        return "Nothing runs in this graph."
    if before == after:
        return f"Both peaks are {after}."
    other = f"the peak{step}, each op once," if step else "the baseline's"
    return f"The planned peak is {after}; {other} is {before}."


def _loss(graph: Graph, p: Peak, loss: frozenset[int], own: int, remedy: bool) -> list[str]:
    """The loss as the holder: what it makes or reads, and gradients of the same size. remedy : slices would be news."""
    losses = loss_and_gradients(graph)
    read = {v for i in (*loss, *losses) for v in graph.ops[i].inputs}
    held = [h for h in p.held if h.op in loss or h.op in losses or h.value in read]
    if not held or sum(h.bytes for h in held) < LOSS_LEAST_SHARE * own:
        return []
    biggest = max(held, key=lambda h: h.bytes)
    sized = [h for h in held if h.bytes == biggest.bytes]
    total = sum(h.bytes for h in held)
    shape = dimensions(graph.ops[biggest.op].shape)
    what = f"logits {'×'.join(map(str, shape))}" if len(shape) > 1 else "its inputs"
    times = f", {len(sized)} times at once" if len(sized) > 1 else ""
    entropy = any("nll" in graph.ops[i].target or "cross_entropy" in graph.ops[i].target for i in losses)
    advice = "a chunked cross-entropy would lower it" if entropy and len(shape) > 1 else "in slices it would hold less"
    place = AT_THE_LOSS if 2 * total > own else f"The loss holds {of_bytes(total, own)} of activations"
    return [f"{place}: {what}, {format_bytes(biggest.bytes)}{times}{f'; {advice}' if remedy else ''}."]


def _scores(graph: Graph, p: Peak, own: int) -> list[str]:
    scores = scores_ops(graph)
    held = [h for h in p.held if h.op in scores]
    total = sum(h.bytes for h in held)
    if not held or total < SCORES_LEAST_SHARE * own:
        return []
    biggest = max(held, key=lambda h: h.bytes)
    shape = "×".join(map(str, dimensions(graph.ops[biggest.op].shape)))
    return [f"Attention scores {shape} hold {format_bytes(total)}; {_instead(graph, scores)}."]


def _instead(graph: Graph, scores: frozenset[int]) -> str:
    """Why the step holds attention's scores: it calls the function that avoids them, or does not."""
    if not any(operator_name(graph.ops[i].target) == MATH_KERNEL for i in scores):
        return "scaled_dot_product_attention would not hold them"
    readers = {r for i in scores for v in graph.ops[i].outputs for r in graph.consumers[v]}
    drops = any("dropout" in graph.ops[r].target for r in readers)
    why = "a CPU has no fused one with dropout" if drops else "no fused one here takes its mask, dtype or head size"
    return f"scaled_dot_product_attention runs its math kernel, which holds them: {why}"


def _workspace(graph: Graph, p: Peak, own: int) -> list[str]:
    found: list[Held] = [h for h in p.held if h.role == WORKSPACE and h.bytes >= WORKSPACE_LEAST_SHARE * own]
    return [
        f"The workspace of {op_words(graph.ops[h.op])} alone takes {format_bytes(h.bytes)}: a smaller batch or another "
        "algorithm for this operator lowers it, a schedule does not."
        for h in found
    ]


def _copies(graph: Graph, p: Peak) -> str:
    if not p.moved:
        return ""
    moved = format_bytes(sum(n * graph.values[v].bytes for v, n in p.moved.items()))
    waits = f" the step waits {1e3 * p.waited:,.3g} ms for copies" if p.waited > 0 else " no op waits for a copy"
    return f"Each step copies {moved} to the host, which holds at most {format_bytes(p.host_bytes)} at once;{waits}."


def _floor(graph: Graph, p: Peak, own: int, step: str) -> list[str]:
    """Says that one op alone needs the peak, or nearly: no schedule goes below what it needs."""
    alone = 0 if p.op is None else working_set(graph, p.op)
    if not alone or own > FLOOR_MOST * alone:
        return []
    much = "that much" if own == alone else f"{of_bytes(alone, own)}"
    return [
        f"This op alone needs {much}, its inputs and outputs at once: no schedule{step} goes below that, "
        "only a split of the op."
    ]


def resident_words(resident_bytes: int, peak_bytes: int, state_bytes: int | None) -> str:
    """A sentence where most of the peak is held during the whole step; else "". state_bytes : of the optimizer's state."""
    if not resident_bytes or resident_bytes < RESIDENT_LEAST_SHARE * peak_bytes:
        return ""
    state = f" (of which the optimizer's state {format_bytes(state_bytes)})" if state_bytes else ""
    moved = ', and offload="optimizer" keeps its state on the host' if state_bytes else ""
    return (
        f"Parameters, gradients, buffers and inputs{state} take {of_bytes(resident_bytes, peak_bytes)}: no plan for "
        f"activations lowers them; sharding, fewer trained parameters or an optimizer with less state does{moved}."
    )


def _bytes(h: Holder) -> str:
    return f"{format_bytes(h.bytes)}" + (f" in {h.count} values" if h.count > 1 else "")

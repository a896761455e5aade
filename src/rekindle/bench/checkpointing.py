"""What people write by hand: `torch.utils.checkpoint` around blocks, around segments of blocks, and selectively.

All non-reentrant. Each is a context manager: within it the model's step runs checkpointed, after it the model is as it was.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_map
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from .blocks import chain_of_leaves, find_blocks
from .calls import chains

Forwards = dict[nn.Module, Callable[..., Any]]


class NotApplicable(Exception):
    """The comparator cannot be set up for this model; the message says why."""


@contextmanager
def per_block(model: nn.Module, selective: bool = False) -> Iterator[None]:
    """Every repeated block (see `blocks`) is checkpointed by itself.

    selective : what matrix products, convolutions and attention give is saved, only the rest runs again.

    Raises
    ------
    NotApplicable : the model has no repeated blocks.
    """
    blocks = find_blocks(model)
    if not blocks:
        raise NotApplicable("the model has no repeated blocks to checkpoint")
    more = {"context_fn": partial(create_selective_checkpoint_contexts, _save_products)} if selective else {}
    with _replaced({b: partial(_checkpointed, _own(b), more) for b in blocks}):
        yield


def by_hand(model: nn.Module, step: Callable[[], Any]) -> AbstractContextManager[None]:
    """Per block where the model has blocks, else in √n segments; arguments and errors as of the two."""
    return per_block(model) if find_blocks(model) else sequential(model, step)


@contextmanager
def sequential(model: nn.Module, step: Callable[[], Any]) -> Iterator[None]:
    """√n segments (rounded up) over the n pieces of the model, the last one unchecked, as `checkpoint_sequential` has it.

    Where there are no blocks, it is `checkpoint_sequential` itself over the longest nn.Sequential of leaves (a VGG). Else the
    pieces are what leads to the first block, each block with the leaves before the next one, and what follows the last:
    modules that are called once and pass their one result to the next and to nobody else; `step`, run once, shows which do.

    Raises
    ------
    NotApplicable : there is no such chain.
    """
    blocks = find_blocks(model)
    if not blocks:
        whole = chain_of_leaves(model)
        if whole is None:
            raise NotApplicable("the model has neither repeated blocks nor a long nn.Sequential")
        pieces = _pieces(whole)
        run = partial(checkpoint_sequential, pieces, _root(len(pieces)), use_reentrant=False)
        with _replaced({whole: run}):
            yield
        return
    found = [_around(c, blocks) for c in chains(model, [*blocks, *_leaves_beside(model, blocks)], step)]
    found = [c for c in found if c]
    if all(len(c) == 1 for c in found):
        raise NotApplicable("no block passes its result to the next one alone, so that blocks cannot be put together")
    with _replaced(_segments(found)):
        yield


def _root(n: int) -> int:
    """Segments for so many pieces."""
    return max(2, math.ceil(math.sqrt(n)))


def _leaves_beside(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    inside = {id(m) for b in blocks for m in b.modules()}
    return [m for m in model.modules() if id(m) not in inside and not any(True for _ in m.children())]


def _around(chain: Sequence[nn.Module], blocks: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """A chain of blocks and leaves in pieces: what leads to the first block, each block with the leaves before the next one,
    what follows the last. Empty where there is no block."""
    known = {id(b) for b in blocks}
    at = [i for i, m in enumerate(chain) if id(m) in known]
    if not at:
        return []
    lead = list(chain[: at[0]])
    while lead and _in_place(lead[0]):
        lead.pop(0)
    end = at[-1] + 1
    while end < len(chain) and _in_place(chain[end]):
        end += 1
    pieces = [list(chain[i:j]) for i, j in zip(at, [*at[1:], end], strict=True)]
    return [p for p in (lead, *pieces, list(chain[end:])) if p]


def _in_place(m: nn.Module) -> bool:
    """At the beginning of a segment it would overwrite what the segment before has saved, and backward would refuse."""
    return getattr(m, "inplace", False) is True


def _pieces(whole: nn.Sequential) -> list[nn.Module]:
    """Its elements, where one that works in place stays with the one before it."""
    pieces: list[list[nn.Module]] = []
    for m in whole:
        if pieces and _in_place(m):
            pieces[-1].append(m)
        else:
            pieces.append([m])
    return [piece[0] if len(piece) == 1 else nn.Sequential(*piece) for piece in pieces]


def _segments(found: Sequence[Sequence[Sequence[nn.Module]]]) -> Forwards:
    """found : chains of pieces."""
    n = sum(map(len, found))
    length = max(1, n // _root(n))
    segments = [c[i : i + length] for c in found for i in range(0, len(c), length)]
    # Backward begins with the last one: it would run again at once. Of one chain it is also what division leaves over.
    checked = segments[: _root(n) - 1] if len(found) == 1 else segments[:-1]
    forwards: Forwards = {}
    for segment in checked:
        modules = [m for piece in segment for m in piece]
        forwards[modules[0]] = partial(_checkpointed, partial(_in_turn, [_own(m) for m in modules]), {})
        forwards |= dict.fromkeys(modules[1:], _passes_on)
    return forwards


def _in_turn(forwards: Sequence[Callable[..., Any]], x: Any, *args: Any, **kwargs: Any) -> Any:
    for f in forwards:
        x = f(x, *args, **kwargs)
    return x


def _passes_on(x: Any, *args: Any, **kwargs: Any) -> Any:
    return x


def _checkpointed(forward: Callable[..., Any], more: dict[str, Any], *args: Any, **kwargs: Any) -> Any:
    # lists are copied: a DenseNet appends to the one that it passes, and the second run must see it as it was
    args, kwargs = tree_map(lambda x: x, (args, kwargs))
    return checkpoint(partial(forward, **kwargs), *args, use_reentrant=False, **more)


aten = torch.ops.aten
PRODUCTS = {
    aten.mm, aten.addmm, aten.bmm, aten.baddbmm, aten.convolution, aten._scaled_dot_product_flash_attention,
    aten._scaled_dot_product_efficient_attention, aten._scaled_dot_product_cudnn_attention,
    aten._scaled_dot_product_flash_attention_for_cpu,
}  # fmt: skip


def _save_products(ctx: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
    product = getattr(op, "_overloadpacket", op) in PRODUCTS
    return CheckpointPolicy.MUST_SAVE if product else CheckpointPolicy.PREFER_RECOMPUTE


def _own(m: nn.Module) -> Callable[..., Any]:
    forward: Callable[..., Any] = m.forward
    return forward


@contextmanager
def _replaced(forwards: Forwards) -> Iterator[None]:
    """Meanwhile these modules have these forwards."""
    before = {m: m.__dict__.get("forward") for m in forwards}
    for m, forward in forwards.items():
        m.__dict__["forward"] = forward
    try:
        yield
    finally:
        for m, own in before.items():
            del m.__dict__["forward"]
            if own is not None:
                m.__dict__["forward"] = own

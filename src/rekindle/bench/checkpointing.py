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
    """√n segments over the n blocks of the model, the last segment unchecked, as `checkpoint_sequential` has it.

    Where the blocks are exactly one nn.Sequential, and over the longest nn.Sequential of leaves where there are no blocks
    (a VGG), it is `checkpoint_sequential` itself. Else consecutive blocks, each of which is called once and passes its
    one result to the next and to nobody else, run within one `checkpoint`; `step`, run once, shows which do.

    Raises
    ------
    NotApplicable : there is no such chain.
    """
    blocks = find_blocks(model)
    whole = _sequential_of(model, blocks) if blocks else chain_of_leaves(model)
    if whole is not None:
        run = partial(checkpoint_sequential, _pieces(whole), math.isqrt(len(whole)), use_reentrant=False)
        with _replaced({whole: run}):
            yield
        return
    if not blocks:
        raise NotApplicable("the model has neither repeated blocks nor a long nn.Sequential")
    found = chains(model, blocks, step)
    if all(len(c) == 1 for c in found):
        raise NotApplicable("no block passes its result to the next one alone, so that blocks cannot be put together")
    with _replaced(_segments(found)):
        yield


def _sequential_of(model: nn.Module, blocks: Sequence[nn.Module]) -> nn.Sequential | None:
    """The plain Sequential whose elements are exactly these."""
    return next((m for m in model.modules() if type(m) is nn.Sequential and list(m) == list(blocks)), None)


def _pieces(whole: nn.Sequential) -> list[nn.Module]:
    """Its elements, where one that works in place stays with the one before it: at the beginning of a segment it would
    overwrite what the segment before has saved, and backward would refuse."""
    pieces: list[list[nn.Module]] = []
    for m in whole:
        if pieces and getattr(m, "inplace", False):
            pieces[-1].append(m)
        else:
            pieces.append([m])
    return [piece[0] if len(piece) == 1 else nn.Sequential(*piece) for piece in pieces]


def _segments(found: Sequence[Sequence[nn.Module]]) -> Forwards:
    n = sum(map(len, found))
    length = math.ceil(n / math.isqrt(n))
    pieces = [c[i : i + length] for c in found for i in range(0, len(c), length)]
    forwards: Forwards = {}
    for piece in pieces[:-1]:  # backward begins with the last one: it would run again at once
        forwards[piece[0]] = partial(_checkpointed, partial(_in_turn, [_own(b) for b in piece]), {})
        forwards |= dict.fromkeys(piece[1:], _passes_on)
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

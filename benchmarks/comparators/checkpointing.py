"""Hand-written checkpointing: `torch.utils.checkpoint` around blocks, around segments of blocks, and selectively.

All of it is non-reentrant. Each function is a context manager: inside it the model's step runs checkpointed, and after it the
model is as it was before.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import (
    CheckpointPolicy,
    checkpoint,
    checkpoint_sequential,
    create_selective_checkpoint_contexts,
)

from rekindle.bench.methods import NotApplicable
from rekindle.torch.compiled.cuts import chain_of_leaves, find_blocks
from rekindle.torch.private import tree_map

from .block_chains import block_chains

Forwards = dict[nn.Module, Callable[..., Any]]


@contextmanager
def per_block(model: nn.Module, selective: bool = False) -> Iterator[None]:
    """Checkpoint every repeated block (see `rekindle.torch.compiled.cuts`) by itself.

    selective : save the results of matrix products, convolutions and attention, and recompute only the rest.

    Raises
    ------
    NotApplicable : the model has no repeated blocks.
    """
    blocks = find_blocks(model)
    if not blocks:
        raise NotApplicable("the model has no repeated blocks to checkpoint")
    more = {"context_fn": partial(create_selective_checkpoint_contexts, _save_products)} if selective else {}
    with replaced({b: partial(_checkpointed, _own(b), more) for b in blocks}):
        yield


@contextmanager
def sequential(model: nn.Module, step: Callable[[], Any]) -> Iterator[None]:
    """Checkpoint √n segments (rounded up) of the model's n pieces; the last segment is not checkpointed.

    A model without blocks runs `checkpoint_sequential` itself on its longest nn.Sequential of leaves (a VGG). In a model with
    blocks, the pieces are: the leaves before the first block, each block with the leaves up to the next block, and the leaves
    after the last block. A piece's modules are called once, and only the next piece reads its one result; running `step` once
    shows which modules do so.

    Raises
    ------
    NotApplicable : the model has no such chain.
    """
    blocks = find_blocks(model)
    if not blocks:
        whole = chain_of_leaves(model)
        if whole is None:
            raise NotApplicable("the model has neither repeated blocks nor a long nn.Sequential")
        pieces = _pieces(whole)
        run = partial(checkpoint_sequential, pieces, _root(len(pieces)), use_reentrant=False)
        with replaced({whole: run}):
            yield
        return
    found = [_around(c, blocks) for c in block_chains(model, [*blocks, *_leaves_beside(model, blocks)], step)]
    found = [c for c in found if c]
    if all(len(c) == 1 for c in found):
        raise NotApplicable("no block passes its result to the next one alone, so that blocks cannot be put together")
    with replaced(_segments(found)):
        yield


def _root(n: int) -> int:
    """Number of segments for n pieces."""
    return max(2, math.ceil(math.sqrt(n)))


def _leaves_beside(model: nn.Module, blocks: Sequence[nn.Module]) -> list[nn.Module]:
    inside = {id(m) for b in blocks for m in b.modules()}
    return [m for m in model.modules() if id(m) not in inside and not any(True for _ in m.children())]


def _around(chain: Sequence[nn.Module], blocks: Sequence[nn.Module]) -> list[list[nn.Module]]:
    """Cuts a chain of blocks and leaves into pieces: the leaves before the first block, each block with the leaves up to the
    next one, the leaves after the last. Empty if the chain has no block."""
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
    """An in-place module at the start of a segment would overwrite the value that an earlier one saved; backward refuses."""
    return getattr(m, "inplace", False) is True


def _pieces(whole: nn.Sequential) -> list[nn.Module]:
    """The Sequential's elements; an element that works in place stays with the element before it."""
    pieces: list[list[nn.Module]] = []
    for m in whole:
        if pieces and _in_place(m):
            pieces[-1].append(m)
        else:
            pieces.append([m])
    return [piece[0] if len(piece) == 1 else nn.Sequential(*piece) for piece in pieces]


def _segments(found: Sequence[Sequence[Sequence[nn.Module]]]) -> Forwards:
    """New forward methods, by module, that run each segment of the chains under `torch.utils.checkpoint`."""
    n = sum(map(len, found))
    length = max(1, n // _root(n))
    segments = [c[i : i + length] for c in found for i in range(0, len(c), length)]
    # Backward begins with the last segment, which would be recomputed at once. In a single chain the last segment also takes
    # the remainder of the division.
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
    # copy lists: a DenseNet appends to the list that it passes on, and the recomputation must see the list as it was
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
def replaced(forwards: Forwards) -> Iterator[None]:
    """Inside the context, these modules run these forwards."""
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

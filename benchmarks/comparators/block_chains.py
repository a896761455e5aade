"""Finds which blocks of a model form chains, by watching one training step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode

from rekindle.torch.private import tree_leaves


@dataclass
class _Call:
    """One call of a block. used : whether anything but the next block has read its result."""

    block: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    result: Any = None
    used: bool = False


def block_chains(model: nn.Module, blocks: Sequence[nn.Module], step: Callable[[], Any]) -> list[list[nn.Module]]:
    """The blocks that `step` calls exactly once, in call order, cut into chains.

    Within a chain, a block's first argument is the result of the block before, its other arguments equal the other arguments
    of the block before, and nothing else reads that result. Anything may read the last block's result.
    """
    watch = _Watch()
    with ExitStack() as stack:
        for b in blocks:
            stack.callback(b.register_forward_pre_hook(watch.enter, with_kwargs=True).remove)
            stack.callback(b.register_forward_hook(watch.leave).remove)
        stack.callback(model.register_forward_hook(watch.end).remove)
        with watch:
            step()
    times = Counter(c.block for c in watch.calls)
    found: list[list[nn.Module]] = []
    before: _Call | None = None
    for call in watch.calls:
        if times[call.block] > 1:
            before = None
            continue
        if before is not None and not before.used and _follows(before, call):
            found[-1].append(call.block)
        else:
            found.append([call.block])
        before = call
    return found


def _follows(a: _Call, b: _Call) -> bool:
    if not isinstance(a.result, torch.Tensor) or not b.args or b.args[0] is not a.result:
        return False
    return _same(a.args[1:], b.args[1:]) and _same(a.kwargs, b.kwargs)


def _same(a: Any, b: Any) -> bool:
    """Whether both hold the same tensors (by identity) and equal plain values."""
    if isinstance(a, tuple | list):
        return type(a) is type(b) and len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(_same(a[k], b[k]) for k in a)
    return a is b or (isinstance(a, str | int | float | bool) and type(a) is type(b) and a == b)


class _Watch(TorchFunctionMode):
    """Records calls of blocks, and marks a block's result as used when a torch function outside the next block reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[_Call] = []
        self.inside: list[_Call] = []
        self.results: dict[int, int] = {}  # id of a result -> index of its call; the call keeps it alive

    def enter(self, block: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self.calls.append(_Call(block, args, kwargs))
        self.inside.append(self.calls[-1])

    def leave(self, block: nn.Module, args: Any, result: Any) -> None:
        call = self.inside.pop()
        call.result = result
        for t in tree_leaves(result):
            if isinstance(t, torch.Tensor):
                self.results[id(t)] = next(i for i, c in enumerate(self.calls) if c is call)

    def end(self, model: nn.Module, args: Any, result: Any) -> None:
        """The caller reads the model's result."""
        self._note(result)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self._note((args, kwargs))
        return func(*args, **(kwargs or {}))

    def _note(self, tree: Any) -> None:
        for t in tree_leaves(tree):
            i = self.results.get(id(t)) if isinstance(t, torch.Tensor) else None
            if i is None or self.inside and self.calls[i + 1 :] and self.inside[0] is self.calls[i + 1]:
                continue
            self.calls[i].used = True

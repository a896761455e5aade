"""Calls the module once before it is planned, to see that it works on the sample."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ...errors import RekindleError, TraceError
from ...saying.frames import users_line
from ..private import fake_mode_of
from ..tensors import tree
from ..tensors.op_tensors import Instrument
from .as_before import as_before

CALL_MOST_S = 20.0  # after which a call that has gone well so far is ended; a guess
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory")


def probe(model: nn.Module, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[bool, bool]:
    """Check that the module works on this sample: one plain call on real tensors, which changes nothing. Gives two answers
    about that call, False where a second one does the same: whether it gave tensors of the module another place or shape, or
    replaced some, which a capture may not see; and whether it set up anything that later calls find, as in `Before.set_up`.

    The call is made under no_grad, so that nothing is saved for backward. If it fails, it is made once more with gradients,
    for a forward that needs them itself. Fake and meta tensors hold nothing to try. A call that does not fit into memory,
    or takes longer than `CALL_MOST_S`, proves nothing.

    Raises
    ------
    TraceError : the module itself fails on the sample (the message names the user's line), or returns no tensor.
    """
    tensors, spec = tree.flatten((args, dict(kwargs)))
    every = [*tensors, *model.parameters(), *model.buffers()]
    if fake_mode_of(every) is not None or any(t.is_meta for t in every):
        return False, False
    # Compiled parts of a model run as they are written: compiling them for one call would take long.
    for grad in (False, True):
        eager = torch.compiler.set_stance("force_eager") if "torch._dynamo" in sys.modules else contextlib.nullcontext()
        put_back = as_before(model, [*tensors, *tree.leaves(spec), *args, *kwargs.values()])
        try:
            with put_back as before, eager, torch.set_grad_enabled(grad):
                with _InTime():
                    result = model(*args, **kwargs)
                found, made = tree.flatten(result, opaque_ok=True)
                found += tree.put_into((args, kwargs), tensors)
                moves, sets_up = before.moved(model), before.set_up(model)
                if sets_up:
                    own, named = tree.unflatten(tensors, spec)  # the first call may have taken entries out of its own
                    with as_before(model) as again:
                        with _InTime():
                            model(*own, **named)
                        moves, sets_up = moves and not again.moved(model), not again.set_up(model)
            if not found:
                kind = ", ".join(sorted(set(tree.opaque_kinds(made)))) or type(result).__name__
                raise TraceError(
                    f"the module returns no tensor that can be found (it returns {kind}), so nothing can be trained by it; "
                    "return tensors, in tuples, lists, dicts or dataclasses"
                )
            return moves, sets_up
        except (torch.OutOfMemoryError, MemoryError, _Enough):
            return False, False
        except RekindleError:
            raise
        except Exception as e:
            if any(words in str(e) for words in _OUT_OF_MEMORY):
                return False, False
            if grad:
                text, line = (str(e).strip().splitlines() or [""])[0], users_line(e)[1]
                raise TraceError(
                    f"the module itself fails on this sample: {type(e).__name__}: {text} (at {line or 'the call itself'}). "
                    f"Give a sample that model(…) works on{_as_called(args, kwargs)}"
                ) from (e if line else None)
    raise AssertionError("the second call returns or raises")


def _as_called(args: Sequence[Any], kwargs: Mapping[str, Any]) -> str:
    """How a sample that is no single tensor became a call: where the call fails, another one may have been meant."""
    if len(args) == 1 and isinstance(args[0], torch.Tensor):
        return ""
    given = [f"{len(args)} positional argument{'' if len(args) == 1 else 's'}"] if args else []
    given += [f"the keyword arguments {', '.join(kwargs)}"] if kwargs else []
    return (
        f". It was called with {' and '.join(given)}: a tuple or list stands for positional arguments, a dict for keyword "
        "arguments, so write an argument that is itself a tuple, list or dict as (argument,)"
    )


class _Enough(BaseException):
    """Ends a call that takes too long. Not an Exception, since forward may catch those."""


class _InTime(Instrument):
    """Ends a call that takes too long."""

    def __init__(self) -> None:
        super().__init__()
        self.end = time.monotonic() + CALL_MOST_S

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        if time.monotonic() > self.end:
            raise _Enough

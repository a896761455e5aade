"""States of random generator objects: Python's `random.Random`, NumPy's and torch's."""

from __future__ import annotations

import random
from typing import Any, NoReturn

import numpy as np
import torch

from ...errors import TraceError
from ...frames import line_of, users_frame
from ..private import disable_modes

OTHERS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)  # all but torch's


def state(x: Any) -> Any:
    """The generator's state. From two states with equal `key` it draws the same numbers."""
    if isinstance(x, random.Random):
        return x.getstate()
    if isinstance(x, np.random.RandomState):
        return x.get_state(legacy=False)
    if isinstance(x, torch.Generator):
        with disable_modes():
            return x.get_state()
    return (x.bit_generator if isinstance(x, np.random.Generator) else x).state


def set_state(x: Any, to: Any) -> None:
    """Put the generator into a state that `state` returned."""
    if isinstance(x, random.Random):
        x.setstate(to)
    elif isinstance(x, np.random.RandomState | torch.Generator):
        with disable_modes():
            x.set_state(to)
    else:
        (x.bit_generator if isinstance(x, np.random.Generator) else x).state = to


def refuse_own(op: Any, generator: torch.Generator) -> NoReturn:
    """Raise TraceError for an op of forward that draws from this generator, with the user's name for it and the line."""
    frame = users_frame()
    local = {} if frame is None else frame.f_locals
    owner = next(iter(local)) if local else ""  # the first parameter: `self` in a method
    seen = [*local.items(), *({} if frame is None else frame.f_globals).items()]
    seen += [(f"{owner}.{k}", x) for k, x in getattr(local.get(owner), "__dict__", {}).items()]
    names = [k for k, x in seen if isinstance(x, torch.Generator) and x._cdata == generator._cdata]  # type: ignore[attr-defined]
    which = f", {names[0]}," if names else ""
    where = f" at {line_of(frame)}" if frame is not None else ""
    raise TraceError(
        f"the model draws from a generator of its own{which} by {op}{where}. A plan cannot put its state back to draw the "
        "same numbers again: draw from torch's default generator, which torch.manual_seed seeds, or draw outside of forward "
        "and pass the numbers in",
        reason="draws from a generator of its own",
    )


def key(state: Any) -> Any:
    """A comparable key of a state."""
    if isinstance(state, dict):
        return tuple((k, key(x)) for k, x in state.items())
    state = state.numpy() if isinstance(state, torch.Tensor) else state
    return state.tobytes() if isinstance(state, np.ndarray) else state

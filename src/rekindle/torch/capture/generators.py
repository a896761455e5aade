"""States of random generator objects: Python's `random.Random`, NumPy's and torch's."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch

OTHERS = (random.Random, np.random.Generator, np.random.RandomState, np.random.BitGenerator)  # all but torch's


def state(x: Any) -> Any:
    """The generator's state. From two states with equal `key` it draws the same numbers."""
    if isinstance(x, random.Random):
        return x.getstate()
    if isinstance(x, np.random.RandomState):
        return x.get_state(legacy=False)
    if isinstance(x, torch.Generator):
        return x.get_state()
    return (x.bit_generator if isinstance(x, np.random.Generator) else x).state


def set_state(x: Any, to: Any) -> None:
    """Put the generator into a state that `state` returned."""
    if isinstance(x, random.Random):
        x.setstate(to)
    elif isinstance(x, np.random.RandomState | torch.Generator):
        x.set_state(to)
    else:
        (x.bit_generator if isinstance(x, np.random.Generator) else x).state = to


def key(state: Any) -> Any:
    """A comparable key of a state."""
    if isinstance(state, dict):
        return tuple((k, key(x)) for k, x in state.items())
    return state.tobytes() if isinstance(state, np.ndarray) else state

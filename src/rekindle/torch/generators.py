"""Random generators that modules hold as attributes."""

from __future__ import annotations

import pickle
import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import nn

OTHERS = (random.Random, np.random.RandomState, np.random.Generator)  # than torch's


class Generators:
    """Random generators among some objects, in the states that they are in now."""

    def __init__(self, held: Iterable[Any], kinds: tuple[type, ...] = (torch.Generator, *OTHERS)):
        self._kept: list[tuple[Any, Any]] = [(x, _state(x)) for x in held if isinstance(x, kinds)]

    def moved(self) -> bool:
        """Whether one of Python's or NumPy's is in another state."""
        return any(pickle.dumps(_state(x)) != pickle.dumps(old) for x, old in self._kept if isinstance(x, OTHERS))

    def put_back(self) -> None:
        """Put all of them into those states."""
        for x, old in self._kept:
            if isinstance(x, random.Random):
                x.setstate(old)
            elif isinstance(x, np.random.Generator):
                x.bit_generator.state = old
            else:
                x.set_state(old)


def attributes_of(model: nn.Module) -> list[Any]:
    """The values of the attributes of all its modules."""
    return [x for m in model.modules() for x in m.__dict__.values()]


def _state(x: Any) -> Any:
    if isinstance(x, random.Random):
        return x.getstate()
    if isinstance(x, np.random.RandomState):
        return x.get_state(legacy=False)
    return x.bit_generator.state if isinstance(x, np.random.Generator) else x.get_state()

"""Suite, default batch and parameters of each model of the zoo, without building it.

They stand in zoo.json, so that listing the zoo needs no torch: `python tools/list_zoo.py` in a checkout writes it again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

from . import SUITES, names

FILE = "zoo.json"


@dataclass(frozen=True)
class Listed:
    """One model of the zoo.

    suite : the first benchmark suite that has it; None: none has. batch : examples per step where no batch is given.
    parameters : numbers in all its parameters, shared ones once.
    """

    name: str
    suite: str | None
    batch: int
    parameters: int


@cache
def listing() -> list[Listed]:
    """Every model of the zoo, in the order of `zoo.names()`."""
    known = json.loads(files(__package__).joinpath(FILE).read_text(encoding="utf-8"))
    return [Listed(name, suite_of(name), **known[name]) for name in names()]


def suite_of(name: str) -> str | None:
    """The first suite that has the model."""
    return next((suite for suite, models in SUITES.items() if name in models), None)

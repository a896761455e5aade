"""Suite, default batch and parameters of each model of the zoo, without building it.

`measured` builds a model to count them. The file zoo.json holds its answers, so that listing the zoo needs no
torch: `python -m rekindle.zoo.listing` writes it again.
"""

from __future__ import annotations

import inspect
import json
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from pathlib import Path

from . import load, maker, names, seeds
from .sized import Sized
from .suites import SUITES

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


def measured(name: str) -> Listed:
    """The same of one model, from the model itself: it is built from fake tensors, which takes a second or two and no memory.

    Raises
    ------
    UsageError, RekindleError : as `load`.
    """
    model, _ = load(name, fake=True)
    return Listed(name, suite_of(name), _default_batch(name), sum(p.numel() for p in model.parameters()))


def _default_batch(name: str) -> int:
    make = maker(name)
    if isinstance(make, Sized):
        return make.batch
    default = inspect.signature(make).parameters["batch"].default
    return seeds.row(name).batch if default is None else int(default)


def _write() -> None:
    rows = {m.name: {"batch": m.batch, "parameters": m.parameters} for m in map(measured, names())}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    Path(__file__).with_name(FILE).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    _write()

"""Counts the parameters of every model of the zoo and writes them to src/rekindle/zoo/zoo.json, which `rekindle zoo` lists."""

from __future__ import annotations

import inspect
import json
from pathlib import Path

from rekindle import zoo
from rekindle.zoo import LISTING, Listed, seeds, suite_of


def measured(name: str) -> Listed:
    """The entry of one model, from the model itself: it is built from fake tensors, which takes a second or two and no memory.

    Raises
    ------
    UsageError, RekindleError : as `zoo.load`.
    """
    model, _ = zoo.load(name, fake=True)
    return Listed(name, suite_of(name), _default_batch(name), sum(p.numel() for p in model.parameters()))


def _default_batch(name: str) -> int:
    default = inspect.signature(zoo.maker(name)).parameters["batch"].default
    return seeds.row(name).batch if default is None else int(default)


def main() -> None:
    """Write zoo.json again."""
    rows = {m.name: {"batch": m.batch, "parameters": m.parameters} for m in map(measured, zoo.names())}
    lines = ",\n".join(f"  {json.dumps(name)}: {json.dumps(row)}" for name, row in rows.items())
    Path(zoo.__file__).with_name(LISTING).write_text(f"{{\n{lines}\n}}\n", encoding="utf-8")


if __name__ == "__main__":
    main()

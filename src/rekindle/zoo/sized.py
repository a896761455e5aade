"""Models of the zoo with many options: a frozen dataclass holds these instead of a long list of parameters."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

Maker = Callable[..., tuple[Any, Any]]


@dataclass(frozen=True)
class Sized:
    """A model whose options are the fields of a dataclass.

    make : (batch, size) -> (model, sample).
    size : an instance of the dataclass: the published size.
    batch : the batch where none is given.
    """

    make: Maker
    size: Any
    batch: int

    def __call__(self, batch: int | None = None, **options: Any) -> tuple[Any, Any]:
        """(model, sample) at the published size, but for the options given."""
        return self.make(self.batch if batch is None else batch, replace(self.size, **options))


def options_of(maker: Maker) -> list[str]:
    """Names of the options of one of the zoo's models, `batch` left out."""
    if isinstance(maker, Sized):
        return [f.name for f in fields(maker.size)]
    return [p for p in inspect.signature(maker).parameters if p != "batch"]

"""What `make test` leaves to `make sweep`."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

import pytest

sweep = pytest.mark.sweep


def few(values: Iterable[Any], keep: Collection[Any]) -> list[Any]:
    """All values for `parametrize`; those that are not among `keep` are marked sweep. A tuple stands for several arguments.

    Raises
    ------
    ValueError : `keep` names a value that is not there.
    """
    every = list(values)
    if unknown := [k for k in keep if k not in every]:
        raise ValueError(f"{unknown} are not among the values")
    return [v if v in keep else pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=sweep) for v in every]


def every(nth: int, values: Iterable[Any]) -> list[Any]:
    """All values for `parametrize`; all but every `nth` are marked sweep."""
    return [
        v if i % nth == 0 else pytest.param(*v.values, marks=(*v.marks, sweep), id=v.id) if isinstance(v, type(pytest.param()))
        else pytest.param(*(v if isinstance(v, tuple) else (v,)), marks=sweep)
        for i, v in enumerate(values)
    ]  # fmt: skip

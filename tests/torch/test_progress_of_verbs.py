"""Each verb says what it does: to the function that was given, or to the one reporter on stderr."""

from __future__ import annotations

import pytest
import torch

import rekindle
from checked_models import Body
from rekindle.saying import progress

FAST = "chen-sqrt"


def order_of(said: list[str], *beginnings: str) -> list[int]:
    """Where the first line with each beginning stands."""
    return [next(i for i, line in enumerate(said) if line.startswith(b)) for b in beginnings]


def test_a_checkpoint_tells_what_begins_and_so_does_a_new_shape() -> None:
    said: list[str] = []
    model = rekindle.checkpoint(Body(), torch.rand(8, 16), budget=0.9, solver=FAST, progress=said.append)
    begins = ("running the module", "capturing Body", "searching for a plan", "proving bounds", "checking the plan by")
    places = order_of(said, *begins)
    assert places == sorted(places)
    said.clear()
    model(torch.rand(4, 16)).sum().backward()
    assert order_of(said, "capturing Body")


@pytest.mark.parametrize("silent", [False, None])
def test_a_trace_takes_every_kind_of_progress(silent: bool | None) -> None:
    """False was called as a function where operators had to be measured."""
    model, x = Body(), torch.rand(5, 16)
    said: list[str] = []
    rekindle.trace(model, x, progress=said.append)
    assert said[0] == "capturing Body"
    rekindle.trace(model, torch.rand(7, 16), progress=silent)
    assert progress.listener(None) is None  # the reporter is gone

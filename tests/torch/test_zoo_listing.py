"""The list of the zoo says of each model what the model itself says."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from marks import few
from rekindle import zoo
from rekindle.zoo import listing

measured = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "list_zoo.py"))["measured"]


@pytest.mark.parametrize("name", few(zoo.names(), ["gpt", "resnet18", "unet3d"]))
def test_the_list_is_true(name: str) -> None:
    assert {m.name: m for m in listing()}[name] == measured(name)

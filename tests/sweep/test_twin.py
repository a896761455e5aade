"""Random sequences of what people do to a model between steps: planned, it does bit for bit what its eager twin does.

`REKINDLE_TWIN` is how many sequences of up to 20 actions run; where it is not set, 300. A few short ones run in `make test`
(tests/torch/test_short_twin.py).
"""

from __future__ import annotations

import os

import pytest

import twin

pytestmark = pytest.mark.sweep


@pytest.mark.parametrize("seed", range(int(os.environ.get("REKINDLE_TWIN") or 300)))
def test_a_planned_model_does_what_its_eager_twin_does(seed: int) -> None:
    twin.check(seed, 20)

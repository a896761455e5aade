"""Random sequences of what people do to a model between steps: planned, it does bit for bit what its eager twin does.

`REKINDLE_TWIN` is how many sequences run; 20 where it is not set, 300 in the long sweep.
"""

from __future__ import annotations

import os

import pytest

import twin


@pytest.mark.parametrize("seed", range(int(os.environ.get("REKINDLE_TWIN", "20"))))
def test_a_planned_model_does_what_its_eager_twin_does(seed: int) -> None:
    name, goal, actions = twin.sequence(seed)
    try:
        twin.replay(name, goal, actions)
    except twin.Fault as e:
        fewer, last = twin.shrink(name, goal, actions)
        pytest.fail(f"seed {seed}: {last or e}\nFewest actions found: {fewer}\nAll of them: {actions}", pytrace=False)

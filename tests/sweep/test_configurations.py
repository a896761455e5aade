"""Configurations of timm and transformers that nobody tuned for: none wrong, none planned anew in silence, every file binds.

Runs only where REKINDLE_SWEEP is set (`make sweep`); see run_configurations.py. With
REKINDLE_SWEEP="3/8" only every 8th, from the 3rd on.
"""

from __future__ import annotations

import os
from typing import Any

import pytest

GIVEN = os.environ.get("REKINDLE_SWEEP", "")
pytestmark = [pytest.mark.sweep, pytest.mark.skipif(not GIVEN, reason="REKINDLE_SWEEP is not set")]
if GIVEN:
    import run_configurations as sweep
    from configurations import CONFIGURATIONS

    FIRST, _, EVERY = GIVEN.partition("/") if "/" in GIVEN else ("0", "", "1")
    NAMES = list(CONFIGURATIONS)[int(FIRST) :: int(EVERY)]
    CHUNKS = [NAMES[i : i + 8] for i in range(0, len(NAMES), 8)]
else:
    CHUNKS = [[]]


@pytest.mark.parametrize("names", CHUNKS, ids=lambda names: names[0] if names else "none")
def test_configurations(names: list[str]) -> None:
    sweep.sweep(names)
    rows: dict[str, dict[str, Any]] = sweep.read()
    faults = {n: sweep.fault(rows[n]) for n in names if sweep.fault(rows[n])}
    assert not faults, "\n".join(f"{n}: {what}: {rows[n]}" for n, what in faults.items())


def test_enough_configurations_are_planned() -> None:
    rows = sweep.read()
    if len(rows) < len(CONFIGURATIONS):
        pytest.skip("part of the sweep only")
    assert sum(r["status"] == "equal" for r in rows.values()) >= 100

"""Fixtures of the tests of copies."""

from __future__ import annotations

import pytest

from rekindle.torch.offload import optimizer_state


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(optimizer_state, "PART_BYTES", 1)  # a part for each parameter that has state

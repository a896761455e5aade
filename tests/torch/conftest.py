"""Certificates of plans are quick relaxations here: a search for each would take up to a second, and few of these tests look at
them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from rekindle.planning import certify

QUICK = replace(certify.SETTINGS, thorough_s=0.0, brief_s=0.0, longer_sets=2_000)


@pytest.fixture(autouse=True)
def quick_certificates(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Sweep tests, and modules that set `WHOLE_CERTIFICATES`, keep the usual settings."""
    if request.node.get_closest_marker("sweep") is None and not hasattr(request.module, "WHOLE_CERTIFICATES"):
        monkeypatch.setattr(certify, "SETTINGS", QUICK)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of the test's own for measured costs; nothing that was measured before is known."""
    from rekindle.torch.costs import cache as cost_cache
    from rekindle.torch.costs import node_costs

    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(node_costs, "_SESSION", {})
    monkeypatch.setattr(cost_cache, "_WARNED", set())
    return tmp_path / "cache"


@pytest.fixture
def one_thread() -> Iterator[None]:
    """Tiny ops wait for each other's threads on a busy machine."""
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)

"""The next start of the same script makes no search: its plan comes from disk, and the module trains by it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import rekindle
from rekindle.planning import remembered
from rekindle.planning.registry import all_solvers
from rekindle.problem import REGISTERED

WHOLE_CERTIFICATES = True  # the other process, which no fixture reaches, has them
SCRIPT = """
import sys
from test_second_start import planned
planned().forward.plan.save(sys.argv[1])
"""


def planned(**options: Any) -> torch.nn.Module:
    """A small model, checkpointed. The seconds of its ops follow from a named device: measuring has tests of its own."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Tanh()) for _ in range(4)))
    trace = rekindle.trace(model, torch.ones(256, 8), target="h200")
    return rekindle.apply(model, rekindle.plan(trace, budget=0.75, solver="exact", **options))


@pytest.mark.usefixtures("memory_of_plans")
def test_the_second_process_makes_no_search(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "plan.json"
    here = str(Path(__file__).parent)
    subprocess.run([sys.executable, "-c", SCRIPT, str(path)], check=True, timeout=300, cwd=here)
    first = rekindle.load(path)

    all_solvers()
    forbidden = lambda *_: pytest.fail("searched")  # noqa: E731
    for name, solver in REGISTERED.items():
        # It must still be one of Rekindle's own: plans of other packages' solvers are not remembered.
        ours = type("Forbidden", (), {"__module__": solver.solve.__module__, "__call__": forbidden})()
        monkeypatch.setitem(REGISTERED, name, replace(solver, solve=ours, retry=forbidden))
    news: list[str] = []
    model = planned(progress=news.append)
    plan = model.forward.plan
    assert plan.schedule == first.schedule
    assert (plan.peak_bytes, plan.bound_bytes, plan.status) == (first.peak_bytes, first.bound_bytes, first.status)
    assert plan.overhead > 0
    assert remembered.NEWS in news

    plain = rekindle.restore(planned())
    x = torch.randn(256, 8)
    for net in (model, plain):
        net(x).sum().backward()
    grads = [torch.equal(p.grad, q.grad) for p, q in zip(model.parameters(), plain.parameters(), strict=True)]
    assert all(grads)
    with pytest.raises(pytest.fail.Exception):
        planned(cache=False)

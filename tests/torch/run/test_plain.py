"""What a trace says of the plain step is what the plain step takes."""

from __future__ import annotations

import more_models
import pytest

import rekindle
from marks import every
from rekindle import Schedule, simulate
from rekindle.torch.measure.memory import storage_peak
from rekindle.torch.tensors.loss import default_loss


@pytest.mark.parametrize(
    ("name", "options"), every(2, [("gpt_blocks", {"d": 64, "length": 32}), ("unet", {"image": 64, "width": 16})])
)
def test_the_plain_peak_is_that_of_eager(name: str, options: dict[str, int]) -> None:
    """gpt_blocks has dropout of probability 0, which eager leaves out."""
    model, sample = more_models.load(name, batch=4, **options)

    def step() -> None:
        default_loss(model(sample)).backward()

    step()
    held = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None), sample]
    graph = rekindle.trace(model, sample).graph
    planned = simulate(graph, Schedule.baseline(graph)).peak_bytes - graph.resident_bytes
    assert planned == pytest.approx(storage_peak(step, held).peak_bytes, rel=0.02)

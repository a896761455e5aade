"""Short random sequences of what people do to a model between steps, and the comparison that they rest on.

300 longer ones run in `make sweep` (tests/sweep/test_twin.py).
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

import twin
from marks import every


@pytest.mark.parametrize("seed", every(2, range(len(twin.MODELS))))
def test_a_planned_model_does_what_its_eager_twin_does(seed: int) -> None:
    """One sequence for each model."""
    twin.check(seed, 4)


def test_a_plan_stays_in_use_through_what_leaves_the_step_as_it_is() -> None:
    same = ["state_dict", "optimizer_step", "zero_grad_style", "parameter_hook", "argument_style", "no_grad", "deepcopy",
            "mode", "backward_twice", "gradients_of_some", "call_of_submodule"]  # fmt: skip
    pair = twin.replay("Attention", twin.GOALS[0], [(a, 2) for a in same])
    assert pair.plain_steps == 0
    assert pair.planned_steps >= len(same)


def test_a_class_whose_forward_an_instance_overrides_is_watched_too() -> None:
    """A function in the place of the submodule's forward calls its class's, which another one replaces."""
    twin.replay("Blocks", {"max_overhead": 0.5}, [("lora", 47), ("patch_submodule", 59), ("patch_class", 55)])


def test_the_comparison_sees_a_difference(monkeypatch: pytest.MonkeyPatch) -> None:
    def only_the_planned_one(p: twin.Pair, k: int) -> None:
        next(p.both[1].parameters()).data[0, 0] += 2.0**-20

    def a_draw_more(p: twin.Pair, k: int) -> None:
        def step(s: twin.Step) -> None:
            s.train()
            if s.model is p.both[1]:
                torch.rand(1)

        p.step(step)

    for k, (action, word) in enumerate([(only_the_planned_one, "parameter"), (a_draw_more, "random state")]):
        monkeypatch.setitem(twin.ACTIONS, f"action {k}", action)
        with pytest.raises(twin.Fault, match=word) as found:
            twin.replay("Noisy", twin.GOALS[0], [(f"action {k}", 0)])
        assert "twin.replay('Noisy'" in str(found.value)


def test_fewer_actions_that_fail_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def replay(name: str, goal: Any, actions: list[twin.Action]) -> None:
        if {("mode", 1), ("batch", 2)} <= set(actions):
            raise twin.Fault("both are there")

    monkeypatch.setattr(twin, "replay", replay)
    fewer, last = twin.shrink("Noisy", {}, [("length", 0), ("mode", 1), ("lora", 3), ("batch", 2), ("mask", 0)])
    assert fewer == [("mode", 1), ("batch", 2)]
    assert last is not None

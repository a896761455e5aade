"""The bytes that a measured step holds outside of its parts, and when a part is next to the one that runs."""

from __future__ import annotations

from rekindle.parts.division import Moment
from rekindle.parts.ways import Figures
from rekindle.torch.measure.memory import Level
from rekindle.torch.parts.between import Call, between

HELD = 10
USED = [Figures(HELD, 15, 20, 0.0)] * 3


def levels(*rows: tuple[str, int]) -> list[Level]:
    return [Level(name, level, level) for name, level in rows]


def test_a_part_is_near_until_the_next_forward_ends_and_from_when_its_backward_begins() -> None:
    events = [
        f"{call} {phase} {what}"
        for phase, calls in (("forward", range(3)), ("backward", range(2, -1, -1)))
        for call in calls for what in ("begins", "ends")
    ]  # fmt: skip
    found = between(levels(*((name, 0) for name in events), ("", 0)), [Call(i) for i in range(3)], USED, [False] * 3)
    phases = [dict(m.parts) for m in found.moments]
    assert phases == [
        {}, {0: "forward"}, {0: "near"}, {0: "near", 1: "forward"}, {0: "held", 1: "near"},
        {0: "held", 1: "near", 2: "forward"}, {0: "held", 1: "held", 2: "near"}, {0: "held", 1: "near", 2: "backward"},
        {0: "held", 1: "near"}, {0: "near", 1: "backward"}, {0: "near"}, {0: "backward"}, {},
    ]  # fmt: skip
    assert found.next == (frozenset([1]), frozenset([2]), frozenset([None]))


def test_the_part_before_one_that_may_stay_open_is_near_for_longer() -> None:
    events = [f"{call} forward {what}" for call in range(3) for what in ("begins", "ends")]
    events += ["2 backward begins", "2 backward ends"]
    found = between(
        levels(*((name, 0) for name in events), ("", 0)), [Call(i) for i in range(3)], USED, [False, True, False]
    )
    phases = [dict(m.parts) for m in found.moments]
    assert phases[4] == {0: "near", 1: "near"}  # after the forward of 1, which is open
    assert phases[6] == {0: "held", 1: "held", 2: "near"}
    assert phases[7] == {0: "near", 1: "near", 2: "backward"}


def test_inputs_of_two_calls_in_a_row_are_shared() -> None:
    calls = [Call(0, shared={1}), Call(1, shared={1, 2}), Call(0, shared={2})]
    found = between(levels(("", 7)), calls, USED[:2], [False] * 2)
    assert found.shared == (frozenset([1, 2]), frozenset([1, 2]))
    assert found.next == (frozenset([1, None]), frozenset([0]))
    assert found.moments == (Moment(7),)

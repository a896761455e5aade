"""Budgets and goals as people write them, in Python and on the command line."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction as Ratio
from typing import Any

import numpy as np
import pytest

from rekindle.ask import Budget, Fraction, Goal, MaxOverhead
from rekindle.cli.options import read_goal
from rekindle.errors import UsageError
from rekindle.saying.sizes import parse_bytes


def kind(x: Any) -> str:
    """What a test is called: pytest's own way cannot write out a number of 5,000 digits."""
    return f"{type(x).__name__} {str(x)[:20]!a}" if not isinstance(x, int) else f"{x.bit_length()} bits"


@pytest.mark.parametrize("power", range(1, 5))
def test_every_unit_counts_its_bytes(power: int) -> None:
    decimal, binary = "KMGT"[power - 1] + "B", "KMGT"[power - 1] + "iB"
    assert (parse_bytes(f"3{decimal}"), parse_bytes(f"3{binary}")) == (3 * 1000**power, 3 * 1024**power)
    assert parse_bytes("3B") == 3


@pytest.mark.parametrize(
    ("budget", "goal"),
    [
        ("8GiB", Budget(8 << 30)),
        ("8 gb", Budget(8 * 10**9)),
        ("1.5GiB", Budget(3 << 29)),
        ("1.1GiB", Budget(1181116006)),
        ("0.1KB", Budget(100)),
        (" 123456 ", Budget(123456)),
        ("9007199254740993", Budget(2**53 + 1)),
        ("4611686018427387904", Budget(2**62)),
        (2**62, Budget(2**62)),
        ("0", Budget(0)),
        (0, Budget(0)),
        ("1", Budget(1)),
        ("1.", Fraction(1.0)),
        ("1.0", Fraction(1.0)),
        ("0.5", Fraction(0.5)),
        (".5", Fraction(0.5)),
        (0.5, Fraction(0.5)),
        (Ratio(1, 2), Fraction(0.5)),
        (np.float32(0.5), Fraction(0.5)),
        (np.float64(0.5), Fraction(0.5)),
        (np.int64(5), Budget(5)),
        (np.uint8(5), Budget(5)),
    ],
)
def test_budgets_that_make_sense(budget: Any, goal: Goal) -> None:
    found = Goal.parse(budget)
    assert found == goal
    assert type(found.budget) in (int, type(None))
    assert type(found.fraction) in (float, type(None))
    assert Goal.from_json(found.to_json()) == found
    if isinstance(budget, str):
        assert read_goal(budget, None, None) == found


@pytest.mark.parametrize(
    "budget",
    [
        10**30, 10**5000, 2**62 + 1, -1, -(10**5000), "9" * 30, "9" * 400 + "GiB", "9" * 5000, "4611686018427387905", "-1",
        "0.0", "1.5", "-0.5", "2.0", 0.0, 1.5, -0.5, float("nan"), float("inf"), "nan", "inf", "abc", "", " ", "8 potatoes",
        "1e3", "0x10", "5%", "0.5B5", "\x1b[2J", True, False, np.bool_(True), b"8GiB", [8], {}, 3 + 4j, Decimal("0.5"),
        np.array([1, 2]), np.float64("nan"), "٣GiB", object(),
    ],
    ids=kind,
)  # fmt: skip
def test_budgets_that_make_none(budget: Any) -> None:
    with pytest.raises(UsageError) as e:
        Goal.parse(budget)
    assert len(str(e.value)) < 300
    assert "\x1b" not in str(e.value)


@pytest.mark.parametrize("most", ["abc", "0.1", True, float("nan"), float("inf"), -0.1, 10**400, 1e7, [0.1], 1j, b"1"])
def test_overheads_that_make_no_sense(most: Any) -> None:
    with pytest.raises(UsageError, match="at least 0"):
        Goal.parse(max_overhead=most)


@pytest.mark.parametrize("most", [0, 0.1, np.float32(0.5), np.int8(1), Ratio(1, 8)])
def test_overheads_of_any_kind_of_number(most: Any) -> None:
    assert Goal.parse(max_overhead=most) == MaxOverhead(float(most))


@pytest.mark.parametrize("what", [3, "time", b"memory", ["memory"], True, np.array(["memory", "x"])])
def test_what_to_minimise_is_memory(what: Any) -> None:
    with pytest.raises(UsageError, match='"memory"'):
        Goal.parse(minimize=what)


@pytest.mark.parametrize("text", ["0.5", "1.", ".5", ".5GiB"])
def test_part_of_a_byte_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match="no size"):
        parse_bytes(text)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"budget": "50%"}, "'50%' is no size; for that share of the baseline's activation peak give 0.5"),
        ({"budget": "12.5 %"}, "give 0.125"),
        ({"budget": 8.0}, "as a string like '8GiB'"),
        ({"max_overhead": 10}, "would allow 1,000 % extra cost; is that meant? For 10 % give 0.1, for 1,000 % give 10.0"),
        ({"max_overhead": np.int8(5)}, "would allow 500 % extra cost"),
    ],
)  # fmt: skip
def test_a_number_that_is_likely_meant_otherwise_is_asked_back(given: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as e:
        Goal.parse(**given)
    assert words in str(e.value)


def test_a_share_above_one_with_a_point_is_meant() -> None:
    assert Goal.parse(max_overhead=10.0) == MaxOverhead(10.0)

"""Patterns of module paths, as `explain`, `compare` and messages print them."""

from __future__ import annotations

import pytest

from rekindle.explain.modules import paths_pattern, pattern_of, ranges


@pytest.mark.parametrize(
    ("paths", "every", "pattern"),
    [
        (["h.0"], ["h.0", "h.1"], "h.0"),
        (["h.0", "h.0"], ["h.0", "h.1"], "h.0"),
        (["h.0", "h.1"], ["h.0", "h.1", "head"], "h.*"),
        (["h.0", "h.1"], ["h.0", "h.1", "h.2"], "h.0-1"),
        (["h.0", "h.1", "h.3"], [f"h.{i}" for i in range(5)], "h.0-1,3"),
        (["h.0.x", "h.1.x"], ["h.0.x", "h.1.x", "h.2.y"], "h.*.x"),  # another module below
        (["h.0.x", "h.1.x"], ["h.0.x", "h.1.x", "g.2.x"], "h.*.x"),  # another module above
        (["h.0.x", "h.1.x"], ["h.0.x", "h.1.x", "h.2"], "h.*.x"),  # a path of another length
        (["block0", "block1"], ["block0", "block1", "stem2"], "block*"),
        (["block0", "stem1"], ["block0", "stem1"], "block0 and 1 more"),
        (["h.0.x.0", "h.1.x.1"], ["h.0.x.0", "h.1.x.1"], "h.0.x.0 and 1 more"),  # two numbers differ
        (["h.0", "h.1.x"], ["h.0", "h.1.x"], "h.0 and 1 more"),
        (["a", "b", "c"], ["a", "b", "c"], "a and 2 more"),
    ],
)
def test_the_pattern_of_several_paths(paths: list[str], every: list[str], pattern: str) -> None:
    assert paths_pattern(paths, every) == pattern


@pytest.mark.parametrize(
    ("numbers", "words"),
    [
        ([4], "4"),
        ([1, 0], "0-1"),
        ([0, 2, 3, 4, 9], "0,2-4,9"),
        ([0, 2, 4, 6], "0,…,6"),
        ([0, 1, 3, 5, 7, 8], "0-1,…,7-8"),
    ],
)
def test_numbers_as_ranges(numbers: list[int], words: str) -> None:
    assert ranges(numbers) == words


def test_the_pattern_of_what_lies_below_a_module() -> None:
    patterns = {"": "", "h.3": "h.*", "h.3.fc": "h.*.fc"}
    assert pattern_of("h.3.fc.weight", patterns) == "h.*.fc.weight"
    assert pattern_of("h.3.norm.weight", patterns) == "h.*.norm.weight"
    assert pattern_of("h.3", patterns) == "h.*"
    assert pattern_of("loss", patterns) == "loss"

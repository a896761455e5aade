"""Estimates without torch: the search for the largest batch, the figures of an estimate, the error band."""

from __future__ import annotations

import copy
import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import rekindle
from rekindle.estimates.batches import Answer, BatchRow, LargestBatch, largest
from rekindle.estimates.estimate import (
    BLOCK_BYTES,
    CPU_BAND,
    PARTS,
    SEGMENT_BYTES,
    Band,
    Estimate,
    ModuleFigures,
    rounded_on_gpu,
)

RESULTS = Path(__file__).parents[2] / "benchmarks" / "results"


def made(**changes: object) -> Estimate:
    sizes = {field: i + 1 for i, (_, field) in enumerate(PARTS)}
    known = Estimate(
        model="Net", peak_bytes=sum(sizes.values()), **sizes, phase="backward", op="head (mm, f32[2,2])",
        phases=(("forward", 3), ("backward", 45)), floor_bytes=30, floor_op="head (mm, f32[2,2])",
        modules=(ModuleFigures("a", 10, 0.5), ModuleFigures("<b>", 5, 0.0)), seconds=1.0, device="cpu", optimizer="adamw",
        gradients="none", band=Band(-0.02, 0.01, 7, "x"), notes=("a note",), took_seconds=0.1,
    )  # fmt: skip
    return replace(known, **changes)  # type: ignore[arg-type]


@given(
    base=st.integers(0, 10**6), slope=st.integers(1, 10**5), bend=st.floats(0, 0.4), limit=st.integers(0, 10**7),
    first=st.integers(1, 300),
)  # fmt: skip
def test_the_largest_batch_fits_and_its_neighbour_does_not(
    base: int, slope: int, bend: float, limit: int, first: int
) -> None:
    asked: list[int] = []

    def need(batch: int) -> int:
        asked.append(batch)
        return base + int(slope * batch * (1 + bend * (batch % 7 > 3) / 8 + bend * batch**0.1))

    # rounding up now and then must not make it fall
    sizes = [max(need(b) for b in range(1, n + 1)) for n in range(1, 40)]
    asked.clear()
    most = len(sizes)
    found = largest(lambda b: asked.append(b) or sizes[b - 1], limit, first, most=most)  # type: ignore[func-returns-value]
    assert found == max((b for b in range(1, most + 1) if sizes[b - 1] <= limit), default=0)
    assert len(asked) == len(set(asked))


@given(base=st.integers(0, 1000), slope=st.integers(1, 500), limit=st.integers(0, 30_000), first=st.integers(1, 90))
def test_a_need_that_only_says_that_a_batch_fits_serves_too(base: int, slope: int, limit: int, first: int) -> None:
    found = largest(
        lambda b: min(limit, base) if base + slope * b <= limit else base + slope * b,
        limit,
        first,
        exact=False,
        empty=base,
    )
    assert found == max(0, (limit - base) // slope)


@given(base=st.integers(0, 10**9), slope=st.integers(1, 10**7), batch=st.integers(1, 10**5), first=st.integers(1, 64))
def test_an_affine_need_takes_few_tries(base: int, slope: int, batch: int, first: int) -> None:
    asked: list[int] = []

    def need(b: int) -> int:
        asked.append(b)
        return base + slope * b

    assert largest(need, base + slope * batch + slope // 2, first) == batch
    assert len(asked) <= 5
    asked.clear()
    assert largest(need, base + slope * batch + slope // 2, first, empty=base) == batch
    assert len(asked) <= 3


def test_a_largest_batch_is_an_int_that_says_more() -> None:
    found = LargestBatch(12, Answer(12, None, 2**30, 2**29, {"plain": {12: 2**29}, "planned": {}}))
    assert (found + 1, f"{found}", str(found), json.dumps(found), list(range(found))[-1]) == (13, "12", "12", "12", 11)
    assert found.plain == 12
    assert found.overhead == 0
    assert found.sentence == "batch 12 fits 1.0 GiB without a plan, and no larger one with a plan"
    assert "plain=12" in repr(found)
    with pytest.raises(AttributeError):
        found.plain = 3
    for again in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert (int(again), again.plain, again.tried) == (12, 12, found.tried)


def test_no_batch_fits() -> None:
    assert largest(lambda b: 100, 10, 8) == 0
    assert (
        LargestBatch(0, Answer(0, None, 10, None, {"plain": {1: 100}, "planned": {}})).sentence == "no batch fits 10 B"
    )


def test_rows_say_how_a_batch_fits() -> None:
    assert BatchRow.of(4, 10, 10, None, None).fits == "plain"
    assert BatchRow.of(5, 11, 10, None, None, proven=True).fits == "no"
    assert BatchRow.of(5, 11, 10, None, None).fits == "not found"


@given(st.integers(0, 2**40))
def test_a_gpus_allocator_rounds_up(size: int) -> None:
    taken = rounded_on_gpu(size)
    assert size <= taken < size + SEGMENT_BYTES
    assert taken % BLOCK_BYTES == 0


def test_an_estimate_prints_its_parts_and_escapes_what_it_shows() -> None:
    e = made()
    text = str(e)
    assert e.peak_bytes == sum(getattr(e, field) for _, field in PARTS)
    assert all(words in text for words, _ in PARTS)
    assert text.endswith("a note")
    assert "no plan goes below about 30 B" in e.sentence
    assert "-2.00 % to +1.00 % off in 7 measured steps" in e.sentence
    assert "within 5 % or 1.0 MiB, whichever is larger" in e.sentence
    assert e.range_bytes == (0, 45 + 2**20)
    low, high = replace(e, peak_bytes=2**30).range_bytes or (0, 0)
    assert (2**30 / low, 2**30 / high) == pytest.approx((1.05, 0.95))
    assert "<b>" not in e._repr_html_()
    assert max(map(len, text.splitlines()[:-3])) <= 80
    assert "not measured on a GPU" in replace(e, band=None).sentence


def test_an_estimate_is_one_json_document() -> None:
    document = json.loads(json.dumps(made().to_json(), allow_nan=False))
    assert document["format"] == "rekindle.estimate/1"
    assert document["modules"][0] == {
        "path": "a",
        "saved_bytes": 10,
        "recompute_seconds": 0.5,
        "bytes_per_second": 20.0,
    }
    assert document["modules"][1]["bytes_per_second"] is None
    assert document["phases"] == {"forward": 3, "backward": 45}


def test_the_printed_error_band_is_the_committed_files() -> None:
    rows = [json.loads(line) for line in (RESULTS / Path(CPU_BAND.source).name).read_text().splitlines()]
    errors = [r["estimated_bytes"] / r["measured_bytes"] - 1 for r in rows]
    assert len(rows) == CPU_BAND.steps
    assert CPU_BAND.low <= min(errors) < CPU_BAND.low + 1e-4
    assert CPU_BAND.high - 1e-4 < max(errors) <= CPU_BAND.high


def test_public_names_load_lazily() -> None:
    assert {"Estimate", "LargestBatch", "estimate", "largest_batch"} <= set(rekindle.__all__)

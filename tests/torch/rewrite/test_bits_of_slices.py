"""Slices that are said to have the bits of the whole op have them, whatever numbers the op is given."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st
from torch import fx
from torch._subclasses import FakeTensorMode

import cut_cases_of_elements  # noqa: F401  its cases join the others
from cost_nodes import node
from cut_cases import CASES, F64, Maker, Sizes, node_of
from marks import every
from rekindle.torch.operators.record import EVERYWHERE
from rekindle.torch.operators.table import OPERATORS, record_of
from rekindle.torch.rewrite import probe, slice_runs
from rekindle.torch.rewrite.cuts import SUM, Cut, cuts_of
from rekindle.torch.rewrite.probe import Bits, by_construction, known, probed
from rekindle.torch.rewrite.slice_runs import edges_of
from strategies import examples

aten: Any = torch.ops.aten


@pytest.fixture(autouse=True)
def nothing_known(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "_SESSION", {})


def case(name: str, sizes: Sizes, dtype: torch.dtype) -> fx.Node:
    """The node of a case, its float64 tensors in another type."""

    def to(x: Any) -> Any:
        if isinstance(x, list):
            return [to(y) for y in x]
        return x.to(dtype) if isinstance(x, torch.Tensor) and x.dtype is F64 else dtype if x is F64 else x

    op, args, kwargs = CASES[name](Maker(sizes))
    return node_of(op, to(list(args)), {k: to(v) for k, v in kwargs.items()})[0]


def slices_of(cut: Cut) -> list[int]:
    return [k for k in (2, 3, 4) if k <= cut.units]


def is_kept(node: fx.Node, cut: Cut, slices: int, size: int = 0) -> bool:
    """Whether the bits are the same with other numbers, of both kinds."""
    edges = edges_of(slices, size or cut.units)
    return all(probed(node, cut, edges, seed, cancel=cancel) for seed in (11, 12, 13) for cancel in (False, True))


sizes = st.builds(
    Sizes, n=st.integers(2, 12), c=st.integers(2, 12), o=st.integers(2, 9), side=st.integers(3, 9),
    row=st.sampled_from((4, 6, 8, 24, 32, 48)), groups=st.integers(2, 4),
)  # fmt: skip
LEFT_OUT = ("scatter", "empty", "new_empty")  # several numbers for one place, and what was in memory before


@pytest.mark.parametrize("name", every(8, [name for name in CASES if not name.startswith(LEFT_OUT)]))
@examples(5)
@given(sizes, st.sampled_from((torch.float32, torch.float64)))
def test_by_construction_holds_for_every_cut(name: str, sizes: Sizes, dtype: torch.dtype) -> None:
    node = case(name, sizes, dtype)
    for cut in cuts_of(node) if by_construction(node) else []:
        assert all(is_kept(node, cut, k) for k in slices_of(cut) if SUM not in cut.outs)


def test_every_op_by_construction_that_has_a_case_is_tried() -> None:
    tried = {CASES[name](Maker(Sizes()))[0]._schema.name for name in CASES if by_construction(case(name, Sizes(), F64))}
    assert len(tried & {name for name, op in OPERATORS.items() if op.exact == EVERYWHERE}) > 35
    assert not {"aten::gelu_backward", "aten::sum", "aten::mm", "aten::convolution", "aten::scatter_add"} & tried


PROBED = [
    "convolution_2", "convolution_2_bias", "convolution_2_groups", "convolution_backward_2_iw", "convolution_backward_2_w",
    "mm", "addmm_row", "bmm", "attention_causal", "attention_backward_plain", "layer_norm", "layer_norm_backward_input",
    "batch_norm_functional_train", "batch_norm_backward_train", "max_pool2d_backward", "nll_loss_backward_mean", "softmax",
    "log_softmax", "softmax_backward", "log_softmax_backward", "gelu_backward", "silu_backward", "sum_dims", "mean",
    "embedding_backward", "index_first", "gather", "group_norm_backward_input", "upsample_bilinear2d",
]  # fmt: skip


@pytest.mark.parametrize("name", every(4, PROBED))
@examples(6)
@given(sizes, st.sampled_from((torch.float32, torch.bfloat16)))
@example(Sizes(n=7, c=2, o=2, side=9, row=4, groups=3), torch.bfloat16)  # each group alone: another order of sums
def test_other_numbers_do_not_change_the_answer(name: str, sizes: Sizes, dtype: torch.dtype) -> None:
    try:
        node = case(name, sizes, dtype)
    except RuntimeError:
        return  # no kernel for this type
    bits = Bits()
    for cut in cuts_of(node):
        for slices in slices_of(cut):
            if bits.same(node, cut, slices):
                assert SUM not in cut.outs
                assert is_kept(node, cut, slices)


def linear(rows: int, dtype: torch.dtype = torch.float32) -> fx.Node:
    x, w, b = torch.zeros(rows, 300, dtype=dtype), torch.zeros(64, 300, dtype=dtype), torch.zeros(64, dtype=dtype)
    return node_of(aten.addmm.default, (b, x, w.t()), {})[0]


def cut_of(node: fx.Node, ins: tuple[int | None, ...]) -> Cut:
    (cut,) = [c for c in cuts_of(node) if c.ins == ins]
    return cut


@pytest.mark.parametrize("run", [True, False])
def test_linear_by_rows_and_not_by_single_rows(run: bool) -> None:
    node = linear(32)
    cut = cut_of(node, (None, 0, None))
    assert [Bits(run).same(node, cut, k) for k in (2, 4, 32)] == [True, True, False]


@pytest.mark.parametrize("run", [True, False])
def test_sums_are_never_the_same(run: bool) -> None:
    node, _ = node_of(aten.mm.default, (torch.zeros(8, 8), torch.zeros(8, 8)), {})
    cut = cut_of(node, (1, 0))
    assert cut.outs == (SUM,)
    assert not Bits(run).same(node, cut, 2)


@pytest.mark.parametrize("run", [True, False])
def test_more_slices_than_units_are_refused(run: bool) -> None:
    node, _ = node_of(aten.relu.default, (torch.zeros(6, 4),), {})
    cut = cut_of(node, (0,))
    bits = Bits(run)
    assert [bits.same(node, cut, 3, size) for size in (0, 3, 6, 2, 4)] == [True, True, True, False, False]


def test_an_element_wise_op_that_is_approximated_in_vectors_is_found_out() -> None:
    """By rows every slice is a piece of memory; by columns elements lie apart, and no vectors are used."""
    node, _ = node_of(aten.gelu.default, (torch.zeros(64, 128),), {})
    rows, columns = cut_of(node, (0,)), cut_of(node, (1,))
    for run in (True, False):
        assert Bits(run).same(node, rows, 2)
        assert not Bits(run).same(node, columns, 2)


def test_a_slice_that_is_not_of_whole_vectors_is_found_out() -> None:
    node, _ = node_of(aten.sigmoid.default, (torch.zeros(6, 100),), {})
    cut = cut_of(node, (0,))
    assert not Bits().same(node, cut, 2)
    assert not Bits(run=False).same(node, cut, 2)


def test_batch_norms_are_cut_by_channel_into_copies() -> None:
    for name in ("batch_norm_functional_train", "batch_norm_backward_train"):
        node = case(name, Sizes(n=4, c=8, side=7), torch.float32)
        (cut,) = cuts_of(node)
        assert Bits().same(node, cut, 2)
        assert Bits(run=False).same(node, cut, 2)


# -- the table of known ops ------------------------------------------------------------------------------------------------
@pytest.mark.parametrize(
    "name", every(36, [name for name in CASES if record_of(CASES[name](Maker(Sizes()))[0]._schema.name).same_bits])
)
@examples(8)
@given(st.sampled_from((16, 32, 64)), st.sampled_from((16, 32)), st.sampled_from((12, 16)))
def test_the_table_holds_for_sizes_as_in_models(name: str, channels: int, row: int, side: int) -> None:
    """With one thread, as in these tests."""
    node = case(name, Sizes(n=16, c=channels, o=channels, side=side if "3" not in name else 6, row=row), torch.float32)
    for cut in cuts_of(node):
        for slices in (2, 4):
            if SUM not in cut.outs and cut.units % slices == 0 and known(node, cut, edges_of(slices, cut.units)):
                assert is_kept(node, cut, slices)


def test_nothing_runs_where_nothing_can(monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: Any) -> bool:
        raise AssertionError

    monkeypatch.setattr(probe, "probed", never)
    node = linear(32)
    cut = cut_of(node, (None, 0, None))
    assert Bits(run=False).same(node, cut, 2)
    for n in [node, *node.all_input_nodes]:
        n.meta["val"] = n.meta["val"].to("meta")
    assert Bits().same(node, cut, 2)
    sort, _ = node_of(aten.sort.default, (torch.zeros(4, 5),), {})
    assert not Bits(run=False).same(sort, cut_of(sort, (0,)), 2)


def weight_gradient(inputs: int, outputs: int) -> fx.Node:
    """The gradient of a convolution's weight."""
    x, w, g = torch.zeros(2, inputs, 9, 9), torch.zeros(outputs, inputs, 3, 3), torch.zeros(2, outputs, 9, 9)
    pairs = ([1, 1], [1, 1], [1, 1], False, [0, 0], 1, [False, True, False])
    return node_of(aten.convolution_backward.default, (g, x, w, None, *pairs), {})[0]


def test_beside_the_table_only_ops_run_of_which_a_run_alone_tells(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(probe, "probed", lambda node, *a: ran.append(node) or probed(node, *a))
    bits = Bits(table=True)
    product = linear(32)
    assert bits.same(product, cut_of(product, (None, 0, None)), 2)
    few = weight_gradient(3, 64)  # too few channels for threads to share
    assert not bits.same(few, cut_of(few, (1, None, 0)), 2)
    assert not ran
    many = weight_gradient(32, 64)
    cut = cut_of(many, (1, None, 0))
    assert known(many, cut, edges_of(2, cut.units)) is None
    assert not Bits(run=False).same(many, cut, 2)
    assert bits.same(many, cut, 2) == is_kept(many, cut, 2)
    assert set(ran) == {many}


# -- limits ----------------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("limit", [{"most_bytes": 10_000}, {"call_most_s": 1e-9}, {"all_most_s": 1e-9}])
def test_an_op_beyond_the_limits_is_not_run(limit: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    node = linear(32)
    cut = cut_of(node, (None, 0, None))
    monkeypatch.setattr(probe, "SETTINGS", replace(probe.SETTINGS, **limit))
    assert not Bits().same(node, cut, 2)
    assert Bits(run=False).same(node, cut, 2)


def test_of_a_large_op_some_slices_run_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []
    monkeypatch.setattr(probe, "probed", lambda *a: ran.append(a[3:]) or probed(*a))
    node = linear(36)
    cut = cut_of(node, (None, 0, None))
    for large_bytes in (2**30, 1):
        monkeypatch.setattr(probe, "SETTINGS", replace(probe.SETTINGS, large_bytes=large_bytes))
        probe._SESSION.clear()
        assert [Bits().same(node, cut, k) for k in (4, 36)] == [True, False]
    assert ran == [
        (0, False, False), (1, False, True), (2, False, True), (0, False, False),
        (0, True, False), (0, True, False),
    ]  # fmt: skip
    assert slice_runs._some([0, 2, 4, 6, 9, 12, 15, 18]) == [(0, 2), (2, 4), (4, 6), (6, 9), (9, 12), (15, 18)]


def test_a_large_op_in_sixteen_bits_runs_whole_and_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Few of its numbers show another order of sums."""
    ran = []
    monkeypatch.setattr(probe, "probed", lambda *a: ran.append(a[3:]) or True)
    monkeypatch.setattr(probe, "SETTINGS", replace(probe.SETTINGS, large_bytes=1))
    node = linear(32, torch.bfloat16)
    assert Bits().same(node, cut_of(node, (None, 0, None)), 2)
    assert ran == [(0, False, False), (1, False, True), (2, False, True)]


def test_an_op_that_takes_too_long_leaves_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "SETTINGS", replace(probe.SETTINGS, all_most_s=5.0))
    long, _ = node_of(
        aten.mm.default, (torch.zeros(2**16, 2**14, device="meta"), torch.zeros(2**14, 2**14, device="meta")), {}
    )
    for n in [long, *long.all_input_nodes]:
        n.meta["val"] = FakeTensorMode().from_tensor(torch.zeros(1)).new_empty(n.meta["val"].shape)
    bits, short = Bits(), linear(32)
    assert not bits.same(long, cut_of(long, (0, None)), 2)
    assert bits.same(short, cut_of(short, (None, 0, None)), 2)


def test_an_op_that_fails_is_not_the_same_and_is_not_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    def short(*_: Any) -> bool:
        raise RuntimeError("no memory")

    node = linear(32)
    cut = cut_of(node, (None, 0, None))
    with monkeypatch.context() as patch:
        patch.setattr(probe, "probed", short)
        bits = Bits()
        assert not bits.same(node, cut, 2)
        bits.save()
    assert Bits().same(node, cut, 2)


def test_the_random_state_and_the_modes_of_the_caller_are_left_alone() -> None:
    node = linear(32)
    before = torch.get_rng_state()
    with torch.device("meta"):
        assert Bits().same(node, cut_of(node, (None, 0, None)), 2)
    assert torch.equal(before, torch.get_rng_state())


# -- what is remembered ----------------------------------------------------------------------------------------------------
def test_answers_are_read_back(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    node = linear(32)
    cut = cut_of(node, (None, 0, None))
    bits = Bits()
    found = [bits.same(node, cut, k) for k in (2, 32)]
    bits.save()
    (file,) = cache.glob("bits-*.json")
    assert sorted(json.loads(file.read_text())["same"].values()) == [False, True]
    probe._SESSION.clear()  # as a new process would start
    monkeypatch.setattr(probe, "probed", lambda *_: pytest.fail("it runs again"))
    assert [Bits().same(node, cut, k) for k in (2, 32)] == found
    with pytest.raises(pytest.fail.Exception):
        Bits().same(node, cut, 4)


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "", lambda text: text[: len(text) // 2], lambda text: "[1]", lambda text: "\x00\xff",
        lambda text: text.replace("bits/1", "bits/0"), lambda text: text.replace("torch ", "torch 0"),
        lambda text: text.replace("true", "1"), lambda text: json.dumps({**json.loads(text), "same": [1]}),
    ],
)  # fmt: skip
def test_a_damaged_file_counts_as_empty_and_is_written_anew(cache: Path, damage: Any) -> None:
    node = linear(32)
    cut = cut_of(node, (None, 0, None))
    for _ in range(2):
        bits = Bits()
        assert bits.same(node, cut, 2)
        bits.save()
        (file,) = cache.glob("bits-*.json")
        assert list(json.loads(file.read_text())["same"].values()) == [True]
        file.write_text(damage(file.read_text()), encoding="latin-1")
        probe._SESSION.clear()


def test_answers_of_other_processes_stay(cache: Path) -> None:
    one, two = probe.Answers("here"), probe.Answers("here")
    probe._SESSION.clear()
    one.put("a", True)
    two.put("b", False)
    one.save()
    two.save()
    probe._SESSION.clear()
    assert [probe.Answers("here").get(k) for k in "ab"] == [True, False]
    assert probe.Answers("elsewhere").get("a") is None


def test_fractions_among_arguments_are_part_of_the_question() -> None:
    """A product with a power of two is exact, so that it makes no difference whether it is rounded before an addition."""
    x = torch.zeros(64, 100)
    bits, keys = Bits(), []
    for alpha in (0.5, 0.3):
        node, _ = node_of(aten.add.Tensor, (x, x), {"alpha": alpha})
        bits.same(node, cut_of(node, (0, 0)), 2)
        keys = list(bits._given)
    assert len(keys) == 2


@pytest.mark.parametrize(("device", "settings"), [("cpu", [False]), ("cuda", [False, True])])
def test_on_a_gpu_slices_are_probed_with_deterministic_algorithms_too(
    device: str, settings: list[bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    """`verify` compares steps under them, and a GPU has other kernels for them."""
    seen: list[bool] = []
    ways = probe._ways(torch.device(device))
    monkeypatch.setattr(probe, "_ways", lambda _: ways)
    monkeypatch.setattr(probe, "SETTINGS", replace(probe.SETTINGS, runs=1))
    monkeypatch.setattr(probe, "probed", lambda *_: seen.append(torch.are_deterministic_algorithms_enabled()) is None)
    linear = node(aten.addmm.default, torch.randn(8), torch.randn(64, 16), torch.randn(16, 8))
    assert Bits().same(linear, next(c for c in cuts_of(linear) if c.outs == (0,)), 2)
    assert seen == settings
    assert not torch.are_deterministic_algorithms_enabled()

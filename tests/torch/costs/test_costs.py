"""Costs of operators: what is measured, what is estimated, and what is left alone."""

import json
import subprocess
import sys
from typing import Any

import pytest
import torch
from torch._subclasses import FakeTensorMode

from cost_nodes import aten, joint_nodes, node
from marks import sweep
from rekindle.errors import UsageError
from rekindle.torch.costs import cache as cost_cache
from rekindle.torch.costs import clock, clock_cpu, devices, made_up
from rekindle.torch.costs import node_costs as costs
from rekindle.torch.costs import operator_calls as calls
from rekindle.torch.costs.cache import Measurement
from rekindle.torch.costs.node_costs import Cost, modelled_costs, node_costs

pytestmark = pytest.mark.usefixtures("cache")


def test_every_operator_of_a_joint_graph_has_a_cost_and_views_are_free():
    nodes = joint_nodes()
    found = dict(zip(nodes, node_costs(nodes), strict=True))
    names = {str(n.target): c for n, c in found.items()}
    assert names["aten.convolution.default"].flops == 2 * 4 * 16 * 16 * 27 * 8
    assert names["aten.convolution_backward.default"].seconds > 0
    assert names["aten.t.default"] == names["aten.detach.default"] == Cost(0.0, 0, 0)
    assert all(c == Cost(0.0, 0, 0) for n, c in found.items() if "getitem" in str(n.target))
    assert names["aten.native_dropout.default"].seconds > 0


def test_workspace_is_what_the_kernel_needs_beside_its_outputs():
    x = torch.rand(64, 64)
    dense, strided = node_costs([node(aten._softmax.default, t, 1, False) for t in (x, x.t())])
    assert dense.workspace < 16384  # the output is none of it
    assert 16384 <= strided.workspace < 2 * 16384  # it makes a dense copy of its input first


def test_outputs_are_not_workspace():
    (found,) = node_costs([node(aten.add.Tensor, torch.rand(1000), torch.rand(1000))])
    assert found.workspace == 0
    assert found.seconds > 0


def test_the_same_tensor_twice_is_another_call_than_two_tensors(monkeypatch):
    seen = []
    real = made_up.Operands.of
    monkeypatch.setattr(made_up.Operands, "of", lambda self, call: seen.append(real(self, call)[0]) or real(self, call))
    monkeypatch.setattr(clock, "LATER_ROUNDS_MOST", 0)
    x, y = torch.rand(8), torch.rand(8)
    node_costs([node(aten.mul.Tensor, x, x), node(aten.mul.Tensor, x, y), node(aten.mul.Tensor, y, x)])
    assert sorted(a.data_ptr() == b.data_ptr() for a, b in seen) == [False, True]  # two distinct calls


def test_inputs_are_harmless_and_of_the_right_form():
    x = torch.rand(1, 4).expand(1000, 4)
    (call,) = [calls.call_of(node(aten.add.Tensor, x, torch.rand(1000, 4)), None)]
    (a, b), _ = made_up.real_arguments(call)
    assert (a.shape, a.stride(), a.untyped_storage().nbytes()) == (x.shape, x.stride(), 16)
    assert float(b.min()) == float(b.max()) == 0.5
    assert made_up.made_up(torch.rand(3) > 2).all()
    assert made_up.made_up(torch.arange(3)).sum() == 0


def test_random_states_that_a_gpu_reads_on_the_host_are_made_there():
    """Memory-efficient attention with dropout read them through a pointer into the GPU's memory, which ended the process."""
    q, lse = torch.empty(2, 4, 32, 16, device="meta"), torch.empty(2, 4, 32, device="meta")
    seed, offset = (torch.empty((), dtype=torch.long, device="meta") for _ in range(2))
    backward = aten._scaled_dot_product_efficient_attention_backward.default
    mask = torch.empty(2, 4, 32, 32, device="meta")
    call = calls.call_of(node(backward, q, q, q, q, mask, q, lse, seed, offset, 0.1, [True, True, True, False]), None)
    assert call is not None
    for args, _ in (made_up.real_arguments(call), made_up.Operands().of(call)):
        assert [a.device.type for a in args[:9]] == ["meta"] * 7 + ["cpu"] * 2


def test_random_state_grad_mode_and_autocast_are_left_alone():
    nodes = joint_nodes()
    before = torch.get_rng_state()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = node_costs(nodes)
        assert torch.is_autocast_enabled("cpu")
    assert torch.equal(before, torch.get_rng_state())
    assert torch.is_grad_enabled()
    mm = next(c for n, c in zip(nodes, found, strict=True) if n.target is aten.mm.default)
    assert mm.seconds > 0


def no_measuring(*_):
    pytest.fail("measured again")


def test_second_call_is_free(cache, monkeypatch):
    nodes = joint_nodes()
    first = node_costs(nodes)
    monkeypatch.setattr(costs, "measure_cpu", no_measuring)
    assert node_costs(nodes) == first
    (file,) = cache.iterdir()
    doc = json.loads(file.read_text())
    assert doc["format"] == "rekindle.costs/2"
    assert any(key.startswith("aten.convolution.default(0:float32@cpu[4, 3, 16, 16]") for key in doc["ops"])


SCRIPT = """
import torch, rekindle
torch.manual_seed(0)
layers = [torch.nn.Linear(16 * n, 16 * n + 16) for n in range(1, 6)]
model = torch.nn.Sequential(*layers, torch.nn.ReLU(), torch.nn.Dropout(0.5))
print([(op.seconds, op.workspace) for op in rekindle.trace(model, torch.rand(8, 16)).graph.ops])
"""


@sweep
def test_a_second_start_of_a_script_gets_the_same_costs():
    run = [sys.executable, "-c", SCRIPT]
    first, second = (subprocess.run(run, capture_output=True, text=True, check=True).stdout for _ in range(2))
    assert first == second
    assert first.count("(") > 20


def only_some(patch, chosen):
    """Let the other calls be ones that cannot be run."""
    real = clock_cpu.CpuRunner.once

    def once(self, call, args, kwargs):
        if not chosen(call):
            raise RuntimeError("no")
        return real(self, call, args, kwargs)

    patch.setattr(clock_cpu.CpuRunner, "once", once)


def test_a_new_process_gets_the_same_costs_also_for_calls_that_could_not_be_run(monkeypatch):
    nodes = joint_nodes()
    with pytest.MonkeyPatch.context() as patch:
        only_some(patch, lambda call: "norm" not in str(call.target) and "mm" not in str(call.target))
        first = node_costs(nodes)
    assert all(
        c.seconds > 0 for n, c in zip(nodes, first, strict=True) if "norm" in str(n.target) and "getitem" not in n.name
    )
    costs._SESSION.clear()  # as a new process starts
    monkeypatch.setattr(costs, "measure_cpu", no_measuring)
    assert node_costs(nodes) == first


def test_of_two_processes_that_measure_at_once_both_use_what_was_stored_first(cache, monkeypatch):
    call = node(aten.add.Tensor, torch.rand(10), torch.rand(10))

    def meanwhile(calls, counts, found):
        other = cost_cache.CostCache(cost_cache.environment(torch.device("cpu")))
        for c in calls:
            found.rounds[c], found.workspace[c] = [2.0, 2.0], 0
            other.put(c.key, Measurement(1.0, 0.0, 7, c.roofline, c.bytes_moved))
        other.save()

    monkeypatch.setattr(costs, "measure_cpu", meanwhile)
    (found,) = node_costs([call])
    assert (found.seconds, found.workspace) == (1.0, 7)


def test_where_nothing_can_be_stored_the_process_measures_once(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "file" / "cache"))
    call = node(aten.add.Tensor, torch.rand(10), torch.rand(10))
    first = node_costs([call])
    assert first[0].seconds > 0
    monkeypatch.setattr(costs, "measure_cpu", no_measuring)
    assert node_costs([call]) == first


def test_without_measuring_known_calls_cost_as_measured_and_others_by_the_fits(monkeypatch):
    known = [node(aten.relu.default, torch.rand(1 << n)) for n in (10, 14)]
    new = [node(aten.relu.default, torch.rand(1 << 12)), node(aten.tanh.default, torch.rand(1 << 12))]
    assert node_costs([*known, *new], measure=False) == modelled_costs([*known, *new])  # nothing is known
    measured = node_costs(known)
    monkeypatch.setattr(costs, "measure_cpu", no_measuring)
    first = node_costs([*known, *new], measure=False)
    assert first[:2] == measured
    rooflines = [c.seconds for c in modelled_costs([*known, *new])]
    scales = sorted(c.seconds / r for c, r in zip(measured, rooflines, strict=False))
    assert scales[0] <= first[2].seconds / rooflines[2] <= scales[1]
    assert first[3].seconds / rooflines[3] == pytest.approx(first[2].seconds / rooflines[2])  # of the same class
    costs._SESSION.clear()  # in a new process
    assert node_costs([*known, *new], measure=False) == first


def test_fractions_do_not_tell_calls_apart_but_whole_numbers_and_exponents_do():
    x = torch.rand(8, 8)
    a, b, c, d, e = (
        calls.call_of(n, None).key
        for n in (
            node(aten.mul.Tensor, x, 0.5), node(aten.mul.Tensor, x, 0.25), node(aten.sum.dim_IntList, x, [0]),
            node(aten.sum.dim_IntList, x, [1]), node(aten.mul.Tensor, x, 2),
        )
    )  # fmt: skip
    assert a == b != e
    assert c != d
    powers = {calls.call_of(node(aten.pow.Tensor_Scalar, x, p), None).key for p in (0.5, 2.0)}
    assert len(powers) == 2


def test_a_target_or_a_fake_mode_measures_nothing(monkeypatch):
    nodes = joint_nodes()
    monkeypatch.setattr(costs, "measure_cpu", no_measuring)
    h200, old = node_costs(nodes, target="h200"), node_costs(nodes, target="rtx2080ti")
    assert sum(c.seconds for c in h200) < sum(c.seconds for c in old)
    assert all(c.workspace == 0 for c in h200)
    with FakeTensorMode():
        assert node_costs(nodes) == node_costs(nodes, target="cpu")
    assert node_costs(nodes, measure=False) == node_costs(nodes, target="cpu")
    with pytest.raises(UsageError, match="h200, h100, a100"):
        node_costs(nodes, target="abacus")


def test_measuring_under_a_fake_mode_sets_it_aside():
    call = node(aten._softmax.default, torch.rand(64, 64).t(), 1, False)
    with FakeTensorMode():
        (found,) = node_costs([call], measure=True)
        assert type(torch.empty(1)) is not torch.Tensor  # the mode is back
    assert found.workspace >= 16384


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_gpu_at_hand_is_measured():
    call = node(aten._softmax.default, torch.rand(64, 64).t(), 1, False)
    with FakeTensorMode():
        call.args[0].meta["val"] = torch.empty(64, 64, device="cuda").t()
        call.meta["val"] = torch.empty(64, 64, device="cuda")
    before = torch.cuda.get_rng_state()
    (found,) = node_costs([call])
    assert 16384 <= found.workspace < 3 * 16384
    assert 0 < found.seconds < 0.01
    assert torch.equal(before, torch.cuda.get_rng_state())


def test_what_cannot_run_takes_the_scaled_roofline():
    good = node(aten.add.Tensor, torch.rand(100, 100), torch.rand(100, 100))
    bad = node(aten.add.Tensor, torch.rand(100, 100), torch.rand(100, 100))
    bad.args[0].meta["val"] = node(aten.clone.default, torch.rand(7, 9)).meta["val"]  # shapes that do not go together
    fake_gpu = node(aten.clone.default, torch.rand(4))
    with FakeTensorMode():
        fake_gpu.args[0].meta["val"], fake_gpu.meta["val"] = (torch.empty(1 << 20, device="cuda") for _ in range(2))
    found = node_costs([good, bad, fake_gpu])
    rooflines = modelled_costs([good, bad, fake_gpu])
    assert found[1].seconds == pytest.approx(found[0].seconds * rooflines[1].seconds / rooflines[0].seconds)
    assert found[2] == rooflines[2]
    h100 = devices.get("h100")
    assert found[2].seconds == pytest.approx(2 * (4 << 20) / h100.memory_bytes_per_s + h100.launch_s)


def test_without_time_the_rest_is_scaled(monkeypatch):
    sizes = (1 << 8, 1 << 18, 1 << 12)
    nodes = [node(aten._softmax.default, torch.rand(64, n // 64).t(), 0, False) for n in sizes]
    only_some(monkeypatch, lambda call: call.args[0].numel() == 1 << 18)
    small, large, middle = node_costs(nodes)
    assert large.workspace > 0
    assert small.workspace == -(-large.workspace // (1 << 10))
    assert middle.workspace == -(-large.workspace // (1 << 6))
    rooflines = [c.seconds for c in modelled_costs(nodes)]
    scale = large.seconds / rooflines[1]
    assert [small.seconds, middle.seconds] == pytest.approx([rooflines[0] * scale, rooflines[2] * scale])


def test_operands_are_made_once_and_hold_what_the_call_expects():
    x, y = torch.rand(64, 64), torch.rand(64)
    operands = made_up.Operands()
    (a, b), _ = operands.of(calls.call_of(node(aten.add.Tensor, x, y), None))
    (c, d), _ = operands.of(calls.call_of(node(aten.mul.Tensor, y, x.t()), None))
    assert a.data_ptr() == c.data_ptr() != d.data_ptr()
    assert (c.shape, d.shape, d.stride()) == ((64,), (64, 64), (1, 64))
    (e, _), _ = operands.of(calls.call_of(node(aten.add_.Tensor, x, y), None))
    assert e.data_ptr() not in (a.data_ptr(), d.data_ptr()), "it is written to"
    (f, *_), _ = operands.of(calls.call_of(node(aten.slice_scatter.default, y, y), None))
    assert f.untyped_storage().nbytes() == y.untyped_storage().nbytes(), "its storage is copied whole"
    statistics = node(
        aten.native_batch_norm.default, torch.rand(2, 64), y, y, torch.rand(64), torch.rand(64), True, 0.1, 0.1
    )
    (_, w, *_), _ = operands.of(calls.call_of(statistics, None))
    assert w.data_ptr() not in (a.data_ptr(), b.data_ptr(), d.data_ptr()), "it writes to running statistics"


def test_roofline_is_the_slower_of_arithmetic_and_traffic():
    a100 = devices.get("A100")
    assert devices.roofline(a100, 312e12, 0, torch.bfloat16) == pytest.approx(1 + a100.launch_s)
    assert devices.roofline(a100, 19.5e12, 0, torch.float32) == pytest.approx(1 + a100.launch_s)
    assert devices.roofline(a100, 156e12, 0, torch.float32, tf32=True) == pytest.approx(1 + a100.launch_s)
    assert devices.roofline(a100, 1, 2039e9, torch.float64) == pytest.approx(1 + a100.launch_s)
    assert devices.closest(torch.device("cpu")).name == "cpu"
    with pytest.raises(UsageError, match="rtx4090"):
        devices.get("rtx5")


def test_a_workspace_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    ran: list[int] = []
    run = costs._run

    def counted(todo: Any, counts: Any) -> Any:
        ran.append(len(todo))
        return run(todo, counts)

    monkeypatch.setattr(costs, "_run", counted)
    monkeypatch.setattr(costs, "_SESSION", {})
    monkeypatch.setattr(costs, "_LATER", {})
    nodes = joint_nodes()
    first = costs.known_workspaces(nodes)
    assert any(first)
    assert costs.known_workspaces(nodes) == first
    assert len(ran) == 1

"""Costs of operators: what is measured, what is estimated, what is kept on disk, and what is left alone."""

import contextlib
import itertools
import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest
import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

from marks import sweep
from rekindle.errors import UsageError
from rekindle.model import files
from rekindle.torch.costs import cache as cost_cache
from rekindle.torch.costs import clock, devices, made_up
from rekindle.torch.costs import node_costs as costs
from rekindle.torch.costs import operator_calls as calls
from rekindle.torch.costs.node_costs import Cost, node_costs

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(costs, "_SESSION", {})
    monkeypatch.setattr(costs, "_PASSED_OVER", set())
    monkeypatch.setattr(cost_cache, "_WARNED", set())
    return tmp_path / "cache"


def node(op, *args, **kwargs):
    """One call of `op` as a graph node. Tensors among the arguments become placeholders with fake metas; the result's
    meta is what the operator gives on them."""
    graph, metas = fx.Graph(), {}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def placeholder(t):
            if id(t) not in metas:
                metas[id(t)] = graph.placeholder(f"x{len(metas)}")
                metas[id(t)].meta["val"] = mode.from_tensor(t)
            return metas[id(t)]

        call = graph.call_function(op, tree_map_only(torch.Tensor, placeholder, args), kwargs)
        values = fx.node.map_arg((call.args, call.kwargs), lambda n: n.meta["val"])
        call.meta["val"] = op(*values[0], **values[1])
    return call


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        h = torch.nn.functional.dropout(self.norm(self.conv(x)).relu(), 0.5)
        return self.head(h.mean((2, 3)))


def joint_nodes():
    with contextlib.ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, Net(), (torch.rand(4, 3, 16, 16),))
    return [n for n in joint.graph_module.graph.nodes if n.op == "call_function"]


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
    real = clock.real_arguments
    monkeypatch.setattr(clock, "real_arguments", lambda call: seen.append(real(call)[0]) or real(call))
    x, y = torch.rand(8), torch.rand(8)
    node_costs([node(aten.mul.Tensor, x, x), node(aten.mul.Tensor, x, y), node(aten.mul.Tensor, y, x)])
    assert {a is b for a, b in seen} == {True, False}
    assert len(seen) == 4  # two distinct calls, for memory and for time


def test_inputs_are_harmless_and_of_the_right_form():
    x = torch.rand(1, 4).expand(1000, 4)
    (call,) = [calls.call_of(node(aten.add.Tensor, x, torch.rand(1000, 4)), None)]
    (a, b), _ = made_up.real_arguments(call)
    assert (a.shape, a.stride(), a.untyped_storage().nbytes()) == (x.shape, x.stride(), 16)
    assert float(b.min()) == float(b.max()) == 0.5
    assert made_up.made_up(torch.rand(3) > 2).all()
    assert made_up.made_up(torch.arange(3)).sum() == 0


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


def test_second_call_is_free(cache, monkeypatch):
    nodes = joint_nodes()
    first = node_costs(nodes)
    monkeypatch.setattr(costs, "measure_cpu", lambda *_: pytest.fail("measured again"))
    assert node_costs(nodes) == first
    (file,) = cache.iterdir()
    doc = json.loads(file.read_text())
    assert doc["format"] == "rekindle.costs/1"
    assert any(key.startswith("aten.convolution.default(0:float32@cpu[4, 3, 16, 16]") for key in doc["ops"])


def test_what_did_not_settle_is_not_measured_again_in_this_process(cache, monkeypatch):
    call = node(aten.add.Tensor, torch.rand(10), torch.rand(10))
    monkeypatch.setattr(clock, "SETTINGS", replace(clock.SETTINGS, settle_s=-1.0))
    first = node_costs([call])
    assert not cache.exists()
    monkeypatch.setattr(costs, "measure_cpu", lambda *_: pytest.fail("measured again"))
    assert node_costs([call]) == first


def test_a_run_that_was_held_up_does_not_set_the_time(monkeypatch):
    times = iter([[9.0], [3.0], [1.1], [1.0], [5.0]])
    monkeypatch.setattr(clock, "_clocked", lambda *_: next(times))
    monkeypatch.setattr(clock, "_once", lambda *_: (7.0, 0))
    monkeypatch.setattr(clock, "cpu_allocations", contextlib.nullcontext)
    (found,) = node_costs([node(aten.add.Tensor, torch.rand(10), torch.rand(10))])
    assert found.seconds == 1.0  # the first two that agree
    assert next(times) == [5.0]


@pytest.mark.parametrize(
    "damage",
    [
        lambda text: "",
        lambda text: text[: len(text) // 2],
        lambda text: "[1, 2]",
        lambda text: text.replace("rekindle.costs/1", "rekindle.costs/2"),
        lambda text: '{"format": "rekindle.costs/1", "environment": "x", "ops": {}}',
        lambda text: "\x00\xff",
    ],
)
def test_damaged_cache_is_passed_over_and_written_anew(cache, damage):
    call = node(aten.add.Tensor, torch.rand(10), torch.rand(10))
    node_costs([call])
    (file,) = cache.iterdir()
    file.write_text(damage(file.read_text()), encoding="latin-1")
    costs._SESSION.clear()  # as a new process would start
    (again,) = node_costs([call])
    assert again.seconds > 0
    assert len(json.loads(file.read_text())["ops"]) == 1


@pytest.mark.parametrize(
    "entry",
    [
        [-1.0, 0], ["1", 0], [1.0, 0.5], [1.0], [1e999, 0], None, {}, [True, 0], [1.0, True], [10**400, 0], [1.7e308, 0],
        [2**70, 0], [1.0, 2**70], [1.0, -1], [float("nan"), 0], [2e5, 0], [1.0, 10**400],
    ],
)  # fmt: skip
def test_cache_passes_over_entries_that_are_no_costs_and_names_the_file_once(cache, entry, caplog):
    store = cost_cache.CostCache("here")
    store.put("good", 1.0, 2)
    store.save()
    doc = json.loads(store.path.read_text())
    doc["ops"]["op\x1b[2J"] = entry
    store.path.write_text(json.dumps(doc))
    for _ in range(2):
        again = cost_cache.CostCache("here")
        assert again.get("op\x1b[2J") is None
        assert again.get("good") == (1.0, 2)
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert str(store.path) in said
    assert "1 of 2 entries" in said
    assert "\x1b" not in said
    again.put("more", 3.0, 4)
    again.save()
    assert json.loads(store.path.read_text())["ops"] == {"good": [1.0, 2], "more": [3.0, 4]}


@pytest.mark.parametrize("text", ["{", "[" * 100_000, '{"format": 1}', '{"ops": %s}' % ("9" * 5000), "\x00"])
def test_a_damaged_cache_is_named_once(cache, text, caplog):
    store = cost_cache.CostCache("here")
    cache.mkdir()
    store.path.write_text(text)
    assert cost_cache.CostCache("here").get("op") is None
    assert cost_cache.CostCache("here").get("op") is None
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert str(store.path) in said


def test_a_pipe_or_a_folder_in_the_cache_holds_nothing_up(cache):
    store = cost_cache.CostCache("here")
    cache.mkdir()
    for make in (os.mkfifo, os.mkdir):
        make(store.path)
        assert cost_cache.CostCache("here").get("op") is None
        store.put("op", 1.0, 2)
        store.save()
        (os.unlink if make is os.mkfifo else os.rmdir)(store.path)


WRITER = """
import sys
from rekindle.torch.costs.cache import CostCache
number, start = int(sys.argv[1]), sys.stdin.readline()
for i in range(25):
    cache = CostCache("here")
    cache.put(f"op {number} {i}", float(number), i)
    cache.save()
"""


@sweep
def test_four_processes_that_write_at_once_keep_all_entries(cache):
    run = [sys.executable, "-c", WRITER]
    writers = [subprocess.Popen([*run, str(n)], stdin=subprocess.PIPE, text=True) for n in range(4)]
    for w in writers:
        w.stdin.write("go\n")
        w.stdin.close()
    assert [w.wait(timeout=300) for w in writers] == [0] * 4
    ops = json.loads(cost_cache.CostCache("here").path.read_text())["ops"]
    assert ops == {f"op {n} {i}": [float(n), i] for n in range(4) for i in range(25)}
    assert len(list(cache.iterdir())) == 1, "no lock stays behind"


def test_where_folders_cannot_be_locked_a_file_is(cache, monkeypatch):
    monkeypatch.setattr(files, "fcntl", None)
    cache.mkdir()
    with files.locked(cache):
        assert (cache / ".lock").exists()
        with pytest.raises(TimeoutError), files.locked(cache, 0.05):
            pass
        store = cost_cache.CostCache("here")
        monkeypatch.setattr(cost_cache, "SETTINGS", replace(cost_cache.SETTINGS, lock_wait_s=0.05))
        store.put("op", 1.0, 2)
        store.save()  # it gives up, and loses nothing but time
        assert not store.path.exists()
    store.save()
    assert [p.name for p in cache.iterdir()] == [store.path.name]
    old = cache / ".lock"
    old.touch()
    os.utime(old, (0, 0))  # a process that died left it behind
    with files.locked(cache, 1.0):
        pass
    assert not old.exists()


def test_cache_keeps_what_another_process_wrote():
    one, other = cost_cache.CostCache("here"), cost_cache.CostCache("here")
    one.put("a", 1.0, 2)
    other.put("b", 3.0, 4)
    one.save()
    other.save()
    both = cost_cache.CostCache("here")
    assert (both.get("a"), both.get("b")) == ((1.0, 2), (3.0, 4))
    assert cost_cache.CostCache("there").get("a") is None


def test_unwritable_cache_is_no_error(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "file" / "cache"))
    (found,) = node_costs([node(aten.add.Tensor, torch.rand(10), torch.rand(10))])
    assert found.seconds > 0


def test_a_target_or_a_fake_mode_measures_nothing(monkeypatch):
    nodes = joint_nodes()
    monkeypatch.setattr(costs, "measure_cpu", lambda *_: pytest.fail("measured"))
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
    rooflines = node_costs([good, bad, fake_gpu], measure=False)
    assert found[1].seconds == pytest.approx(found[0].seconds * rooflines[1].seconds / rooflines[0].seconds)
    assert found[2] == rooflines[2]
    h100 = devices.get("h100")
    assert found[2].seconds == pytest.approx(2 * (4 << 20) / h100.memory_bytes_per_s + h100.launch_s)


def test_without_time_the_greatest_are_measured_and_the_rest_scaled(cache):
    sizes = (1 << 8, 1 << 18, 1 << 12)
    nodes = [node(aten._softmax.default, torch.rand(64, n // 64).t(), 0, False) for n in sizes]
    # The start, one recorded run of a hundredth of a second, and no time after it.
    ticks = itertools.chain([0.0, 0.0, 0.0, 0.01], itertools.count(1e9, 1e9))

    class Time:
        perf_counter = staticmethod(lambda: next(ticks))

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clock, "time", Time)
        small, large, middle = node_costs(nodes, limit_s=1.0)
    assert large.workspace > 0
    assert small.workspace == -(-large.workspace // (1 << 10))
    assert middle.workspace == -(-large.workspace // (1 << 6))
    assert large.seconds == 0.01
    rooflines = [c.seconds for c in node_costs(nodes, measure=False)]
    scale = 0.01 / rooflines[1]
    assert [small.seconds, middle.seconds] == pytest.approx([rooflines[0] * scale, rooflines[2] * scale])
    assert not cache.exists()  # one run is too few to be kept


def test_roofline_is_the_slower_of_arithmetic_and_traffic():
    a100 = devices.get("A100")
    assert devices.roofline(a100, 312e12, 0, torch.bfloat16) == pytest.approx(1 + a100.launch_s)
    assert devices.roofline(a100, 19.5e12, 0, torch.float32) == pytest.approx(1 + a100.launch_s)
    assert devices.roofline(a100, 156e12, 0, torch.float32, tf32=True) == pytest.approx(1 + a100.launch_s)
    assert devices.roofline(a100, 1, 2039e9, torch.float64) == pytest.approx(1 + a100.launch_s)
    assert devices.closest(torch.device("cpu")).name == "cpu"
    with pytest.raises(UsageError, match="rtx4090"):
        devices.get("rtx5")

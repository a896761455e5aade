"""Costs of operators: what is measured, what is estimated, what is kept on disk, and what is left alone."""

import contextlib
import json
import os
import subprocess
import sys
import time
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
from rekindle.torch.costs import clock, clock_cpu, devices, made_up
from rekindle.torch.costs import node_costs as costs
from rekindle.torch.costs import operator_calls as calls
from rekindle.torch.costs.clock import Measured
from rekindle.torch.costs.fits import Fits, fitted
from rekindle.torch.costs.measurement import Measurement
from rekindle.torch.costs.node_costs import Cost, modelled_costs, node_costs

aten = torch.ops.aten


@pytest.fixture(autouse=True)
def cache(tmp_path, monkeypatch):
    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(costs, "_SESSION", {})
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


def one(seconds, workspace):
    return Measurement(seconds, 0.5, workspace, 1.0, 8)


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
    real = made_up.Operands.of
    monkeypatch.setattr(made_up.Operands, "of", lambda self, call: seen.append(real(self, call)[0]) or real(self, call))
    monkeypatch.setattr(clock, "SETTINGS", replace(clock.SETTINGS, rounds_most=0))
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


class Scripted:
    """A runner whose seconds are given, by operator and round; a round goes over all calls."""

    def __init__(self, seconds):
        self.seconds, self.order = seconds, []

    def clock(self):
        return clock_cpu.Clock()

    def once(self, call, args, kwargs):
        return self.runs(call, args, kwargs, 1)

    def runs(self, call, args, kwargs, number):
        name = str(call.target).split(".")[1]
        self.order.append(name)
        return self.seconds[name].pop(0)


def scripted(seconds, **counts):
    """Measure calls of a runner that has these seconds for each operator."""
    x, runner, found = torch.rand(8), Scripted(seconds), Measured()
    made = {name: calls.call_of(node(getattr(aten, name).default, x), None) for name in seconds}
    clock.measure(list(made.values()), {c: counts.get(name, 1) for name, c in made.items()}, runner, found, 1e9)
    return runner.order, {name: (found.seconds(c), found.spread(c)) for name, c in made.items()}


def test_calls_are_timed_in_turns_and_the_least_round_counts():
    order, found = scripted({"relu": [2e-2, 1e-3, 5.0, 1.01e-3], "tanh": [4e-3, 4e-3, 4e-3]})
    assert order == ["relu", "tanh"] + ["relu", "tanh"] * 2 + ["relu"]  # tanh's rounds agree
    assert found["relu"] == (1e-3, pytest.approx(0.01))
    assert found["tanh"] == (4e-3, 0.0)


def test_rounds_that_lie_far_apart_are_stored_like_others(cache, monkeypatch):
    call = node(aten.add.Tensor, torch.rand(10), torch.rand(10))

    def far_apart(calls, counts, found):
        for c in calls:
            found.rounds[c], found.workspace[c] = [1e-9, 20.0], 0

    monkeypatch.setattr(costs, "measure_cpu", far_apart)
    first = node_costs([call])
    costs._SESSION.clear()
    monkeypatch.setattr(costs, "measure_cpu", no_measuring)
    assert node_costs([call]) == first


def test_the_heaviest_calls_of_a_step_are_timed_first_and_the_light_ones_once():
    order, found = scripted({"relu": [1e-3] * 3, "tanh": [2e-6], "exp": [1e-4] * 3}, exp=100)
    assert order[3:] == ["exp", "relu"] * 2
    assert found["tanh"] == (2e-6, clock.SETTINGS.spread_once)


def test_a_run_that_is_likely_to_take_too_long_is_not_made(monkeypatch):
    monkeypatch.setattr(clock, "SETTINGS", replace(clock.SETTINGS, call_most_s=1e-5))
    small, large = (node(aten.mm.default, torch.rand(n, n), torch.rand(n, n)) for n in (4, 256))
    quick, slow = node_costs([small, large])
    rooflines = [c.seconds for c in modelled_costs([small, large])]
    assert slow.seconds / rooflines[1] == pytest.approx(quick.seconds / rooflines[0])


def test_each_operator_runs_once_before_others_use_up_the_time(monkeypatch):
    nodes = [node(aten._softmax.default, torch.rand(64, n), 1, False) for n in (512, 256, 128)]
    nodes.append(node(aten.relu.default, torch.rand(8)))
    ran = []
    real = clock_cpu.CpuRunner.once
    monkeypatch.setattr(
        clock_cpu.CpuRunner, "once", lambda self, call, *given: ran.append(str(call.target)) or real(self, call, *given)
    )
    node_costs(nodes)
    assert ran == ["aten._softmax.default", "aten.relu.default", *["aten._softmax.default"] * 2]


def test_a_slow_first_call_keeps_no_other_from_being_run(monkeypatch):
    real = clock_cpu.CpuRunner.once

    def once(self, call, args, kwargs):
        if "softmax" in str(call.target):
            time.sleep(0.3)  # as if it loaded a library
            burn = time.process_time() + 0.05
            while time.process_time() < burn:
                pass
        return real(self, call, args, kwargs)

    monkeypatch.setattr(clock_cpu.CpuRunner, "once", once)
    first, large = (
        node(aten._softmax.default, torch.rand(4, 4), 1, False),
        node(aten.mm.default, *torch.rand(2, 512, 512)),
    )
    node_costs([first, large])
    assert all(m.seconds is not None for m in costs._SESSION.values())


def test_a_timing_is_moved_towards_the_fit_where_its_rounds_disagree_and_it_is_high():
    def relu(size, seconds, spread):
        return f"aten.relu.default({size})", Measurement(seconds, spread, 0, size, 1)

    known = dict(
        [relu(n, 2.0 * n, 0.0) for n in (1, 2, 3, 4)] + [relu(5, 100.0, 9.0), relu(6, 12.6, 0.0), relu(7, 7.0, 9.0)]
    )
    fits = Fits(known)
    found = {m.roofline: fits.smoothed("aten.relu.default", m) for m in known.values()}
    assert found[1] == 2.0
    assert 10.0 <= found[5] < 11.0  # 100, in one round
    assert found[6] == 12.6  # its rounds agree
    assert found[7] == 7.0  # a busy machine makes no run quicker


def test_an_operator_is_fitted_by_a_line_where_that_predicts_better():
    line = fitted([(float(n), 5.0 + 2.0 * n) for n in range(1, 9)])
    assert (line.launch_s, line.scale) == pytest.approx((5.0, 2.0))
    plain = fitted([(float(n), 2.0 * n) for n in range(1, 9)])
    assert (plain.launch_s, plain.scale) == (0.0, 2.0)
    assert fitted([(1.0, 7.0), (100.0, 205.0)]).launch_s == 0.0  # too few
    held_up = [(float(n), 5.0 + 2.0 * n) for n in range(1, 9)] + [(4.5, 14e3)]
    assert fitted(held_up)(4.5) == pytest.approx(14.0, rel=0.05)


def test_kinds_without_timings_take_their_class_and_then_all():
    known = {
        "aten.relu.default(1)": Measurement(3.0, 0.0, 0, 1.0, 1), "aten.tanh.default(1)": Measurement(5.0, 0.0, 0, 1.0, 1),
        "aten.mm.default(1)": Measurement(50.0, 0.0, 0, 1.0, 1), "aten.bmm.default(1)": Measurement(60.0, 0.0, 0, 1.0, 1),
    }  # fmt: skip
    fits = Fits(known)
    ops = ("aten.tanh.default", "aten.exp.default", "aten.addmm.default", "aten.convolution.default")
    assert [fits.predicted(op, 2.0) for op in ops] == [10.0, 8.0, 110.0, 55.0]
    assert Fits({}).predicted("aten.exp.default", 2.0) == 2.0


def test_unknown_workspace_is_the_larger_share_of_the_two_nearest_sizes():
    def conv(moved, workspace):
        return f"aten.convolution.default({moved})", Measurement(1.0, 0.0, workspace, 1.0, moved)

    fits = Fits(dict([conv(100, 300), conv(1000, 500), conv(2000, 1500)]))
    assert fits.workspace("aten.convolution.default", 1500) == 1125
    assert fits.workspace("aten.convolution_backward.default", 10) == 30  # its class
    assert fits.workspace("aten.relu.default", 1500) == 0


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
        *([x, 0.0, 0, 1.0, 8] for x in (-1.0, "1", 1e999, True, 10**400, 1.7e308, 2**70, float("nan"), 2e5, 0.0)),
        *([1.0, x, 0, 1.0, 8] for x in (-1.0, "1", None, float("nan"), 1e999, True)),
        *([1.0, 0.0, x, 1.0, 8] for x in (0.5, True, 2**70, -1, 10**400, "1")),
        *([1.0, 0.0, 0, x, 8] for x in (None, 0.0, float("nan"), True)),
        *([1.0, 0.0, 0, 1.0, x] for x in (None, 0.5, 2**70, -1)),
        [1.0, 0], [1.0], None, {},
    ],
)  # fmt: skip
def test_cache_passes_over_entries_that_are_no_costs_and_names_the_file_once(cache, entry, caplog):
    store = cost_cache.CostCache("here")
    store.put("good", one(1.0, 2))
    store.save()
    doc = json.loads(store.path.read_text())
    doc["ops"]["op\x1b[2J"] = entry
    store.path.write_text(json.dumps(doc))
    for _ in range(2):
        again = cost_cache.CostCache("here")
        assert again.get("op\x1b[2J") is None
        assert again.get("good") == one(1.0, 2)
    (said,) = [r.getMessage() for r in caplog.records if r.levelname == "WARNING"]
    assert str(store.path) in said
    assert "1 of 2 entries" in said
    assert "\x1b" not in said
    again.put("more", one(3.0, 4))
    again.save()
    assert json.loads(store.path.read_text())["ops"] == {
        "good": [1.0, 0.5, 2, 1.0, 8],
        "more": [3.0, 0.5, 4, 1.0, 8],
    }


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
        store.put("op", one(1.0, 2))
        store.save()
        (os.unlink if make is os.mkfifo else os.rmdir)(store.path)


WRITER = """
import sys
from rekindle.torch.costs.cache import CostCache
from rekindle.torch.costs.measurement import Measurement
number, start = int(sys.argv[1]), sys.stdin.readline()
for i in range(25):
    cache = CostCache("here")
    cache.put(f"op {number} {i}", Measurement(float(number + 1), 0.5, i, 1.0, 8))
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
    assert ops == {f"op {n} {i}": [float(n + 1), 0.5, i, 1.0, 8] for n in range(4) for i in range(25)}
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
        store.put("op", one(1.0, 2))
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
    first, other = cost_cache.CostCache("here"), cost_cache.CostCache("here")
    first.put("a", one(1.0, 2))
    other.put("b", one(3.0, 4))
    first.save()
    other.save()
    both = cost_cache.CostCache("here")
    assert (both.get("a"), both.get("b")) == (one(1.0, 2), one(3.0, 4))
    assert cost_cache.CostCache("there").get("a") is None


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

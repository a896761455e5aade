"""Rounds of timing, and the fits of what was timed."""

import time

import pytest
import torch

from cost_nodes import aten, node
from rekindle.torch.costs import clock, clock_cpu
from rekindle.torch.costs import node_costs as costs
from rekindle.torch.costs import operator_calls as calls
from rekindle.torch.costs.cache import Measurement
from rekindle.torch.costs.clock import Measured
from rekindle.torch.costs.fits import Fits, fitted
from rekindle.torch.costs.node_costs import modelled_costs, node_costs

pytestmark = pytest.mark.usefixtures("cache")


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
    monkeypatch.setattr(costs, "measure_cpu", lambda *_: pytest.fail("measured again"))
    assert node_costs([call]) == first


def test_the_heaviest_calls_of_a_step_are_timed_first_and_the_light_ones_once():
    order, found = scripted({"relu": [1e-3] * 3, "tanh": [2e-6], "exp": [1e-4] * 3}, exp=100)
    assert order[3:] == ["exp", "relu"] * 2
    assert found["tanh"] == (2e-6, clock.SPREAD_ONCE)


def test_a_run_that_is_likely_to_take_too_long_is_not_made(monkeypatch):
    monkeypatch.setattr(clock, "CALL_MOST_S", 1e-5)
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


def conv(image, kernel=(3, 3), channels=4, layout=torch.contiguous_format, dtype=torch.float32, **how):
    """The key of a convolution, and bytes that it moves."""
    x = torch.rand(2, channels, *image, dtype=dtype).contiguous(memory_format=layout)
    w, d = torch.rand(channels, channels, *kernel, dtype=dtype), len(image)
    rest = {
        "stride": [1] * d,
        "padding": [0] * d,
        "dilation": [1] * d,
        "transposed": False,
        "output": [0] * d,
        "groups": 1,
    }
    call = calls.call_of(node(aten.convolution.default, x, w, None, *(rest | how).values()), None)
    return call.key, call.bytes_moved


def known(*sizes):
    found = {conv(image)[0]: (workspace, conv(image)[1]) for image, workspace in sizes}
    return {key: Measurement(1.0, 0.0, workspace, 1.0, moved) for key, (workspace, moved) in found.items()}


def test_an_unknown_workspace_is_guessed_from_calls_of_its_kind():
    fits = Fits(known(((20, 20), 3000), ((40, 40), 5000), ((80, 80), 9000)))
    key, moved = conv((40, 40), channels=5)
    assert fits.workspace(key, moved) == pytest.approx(
        5000 * moved / conv((40, 40))[1], abs=1
    )  # the larger share of two
    assert fits.workspace(*conv((160, 160))) > 9000
    others = [
        conv((5, 20, 20), kernel=(3, 3, 3)), conv((60, 60), kernel=(1, 1)), conv((60, 60), dtype=torch.float64),
        conv((60, 60), layout=torch.channels_last), conv((60, 60), stride=[2, 2]), conv((60, 60), dilation=[2, 2]),
    ]  # fmt: skip
    assert [fits.workspace(*other) for other in others] == [0] * len(others)
    assert fits.workspace(key.replace("convolution", "convolution_backward"), moved) == 0
    assert fits.workspace("aten.relu.default(0:float32@cpu[9]/[1])", 1500) == 0


def test_a_smaller_call_is_not_guessed_to_take_more_than_a_larger_one():
    """As reported: a smaller image was said not to fit, by a workspace that was guessed from calls of other sizes."""
    fits = Fits(known(((4, 4), 5000), ((80, 80), 6000)))
    assert fits.workspace(*conv((79, 79))) == 6000

"""The instruments, on sequences of allocations whose peak is known by hand."""

import gc
import os
import weakref

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.autograd.profiler import record_function

from rekindle.errors import UsageError
from rekindle.torch.costs import allocations
from rekindle.torch.costs.allocations import cpu_allocations
from rekindle.torch.costs.operator_calls import FlopCount, ModelledTime
from rekindle.torch.measure.memory import Peak, allocator_peak, storage_peak

KIB = 1024


def rise_and_fall():
    """4 + 8 KiB, the 4 freed, + 2 KiB: the peak is 12 KiB, after the second."""
    a = torch.empty(KIB)
    b = torch.empty(2 * KIB)
    del a
    c = torch.empty(KIB // 2)
    del b, c


def test_no_operators_are_recorded(monkeypatch):
    """A step of a recurrent layer runs 20,000 of them, whose events took more time than the step."""
    names = set()
    real = allocations.recorded_allocations

    def noted():
        events = real()
        names.update(e.name() for e in events)
        return events

    monkeypatch.setattr(allocations, "recorded_allocations", noted)
    with cpu_allocations("mark") as log, record_function("mark"):
        torch.ones(KIB).add(1)
    assert names == {"[memory]", "mark"}
    assert [*log.marks] == ["mark"]


@pytest.mark.parametrize("fake", [False, True])
def test_storage_peak_of_allocations_made_by_hand(fake):
    if fake:
        with FakeTensorMode():
            found = storage_peak(rise_and_fall)
    else:
        found = storage_peak(rise_and_fall)
    assert (found.peak_bytes, found.left_bytes) == (12 * KIB, 0)
    assert found.peak_op == "aten.empty.memory_format"


def test_allocator_peak_of_allocations_made_by_hand():
    found = allocator_peak(rise_and_fall)
    assert (found.peak_bytes, found.left_bytes) == (12 * KIB, 0)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_allocator_peak_on_a_gpu():
    def step():
        a = torch.empty(KIB, device="cuda")
        b = torch.empty(2 * KIB, device="cuda")
        del a, b

    step()
    assert allocator_peak(step, "cuda") == Peak(12 * KIB, 0)


def test_views_and_inplace_cost_nothing_and_what_is_left_is_told():
    kept = []

    def step():
        a = torch.zeros(KIB)
        kept.append(a.view(32, 32)[3:5].t())
        a.add_(1)

    assert (s := storage_peak(step)).peak_bytes == 4 * KIB
    assert s.left_bytes == 4 * KIB
    kept.clear()
    assert allocator_peak(step).left_bytes == 4 * KIB


def test_older_storages_do_not_count_named_or_not():
    old, named = torch.zeros(KIB), torch.zeros(KIB)

    def step():
        old.add_(1)  # its result is its own storage
        return (named.mul_(2) + old).sum()

    assert storage_peak(step, known=[named]).peak_bytes == 4 * KIB + 4


def test_a_known_storage_that_dies_does_not_hide_its_successor():
    box = [torch.zeros(KIB)]
    known = list(box)

    def step():
        known.clear()
        box.clear()
        held = [torch.zeros(KIB) for _ in range(4)]
        del held

    assert storage_peak(step, known=iter(box)).peak_bytes == 16 * KIB


def test_resized_storages_count_their_present_size():
    def step():
        a = torch.empty(KIB)
        a.untyped_storage().resize_(0)  # no operator
        b = torch.empty(1)
        b.resize_(KIB // 2)
        return b + 1

    assert storage_peak(step).peak_bytes == 4 * KIB


def test_a_tensor_made_from_data_counts():
    assert storage_peak(lambda: torch.tensor([1.0] * 10)).peak_bytes == 40


def net_and_step():
    net = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.ReLU(), torch.nn.Linear(128, 64))

    def step():
        net(torch.rand(256, 64)).sum().backward()

    step()  # the gradients exist from here on
    return step


def test_fake_and_real_step_have_the_same_storage_peak():
    real = storage_peak(net_and_step())
    with FakeTensorMode():
        fake = storage_peak(net_and_step())
    assert real == fake
    assert real.left_bytes == 0


def test_allocator_sees_at_least_what_lives_at_operator_boundaries():
    step = net_and_step()
    seen, live = allocator_peak(step), storage_peak(step)
    assert seen.left_bytes == 0
    assert live.peak_bytes <= seen.peak_bytes


def test_allocator_sees_temporaries_inside_a_kernel():
    x = torch.rand(64, 64).t()
    assert storage_peak(lambda: torch.softmax(x, 0)).peak_bytes == 16 * KIB
    assert allocator_peak(lambda: torch.softmax(x, 0)).peak_bytes >= 32 * KIB


def test_instruments_see_the_same_together_as_alone():
    step = net_and_step()
    flops, time = FlopCount(), ModelledTime("h200")
    peak = storage_peak(step, also=(flops, time))
    with FlopCount() as flops_alone, ModelledTime("h200") as time_alone:
        step()
    assert peak == storage_peak(step)
    assert flops.total == flops_alone.total > 0
    assert time.total == time_alone.total > 0


def test_instruments_keep_nothing_alive():
    refs = []

    def step():
        t = torch.zeros(KIB)
        refs.append(weakref.ref(t))

    storage_peak(step)
    allocator_peak(step)
    gc.collect()
    assert all(r() is None for r in refs)


def test_recording_leaves_the_environment_and_stderr_alone(capfd, monkeypatch):
    monkeypatch.delenv("KINETO_LOG_LEVEL", raising=False)
    allocator_peak(rise_and_fall)
    assert "KINETO_LOG_LEVEL" not in os.environ
    assert capfd.readouterr().err == ""


def test_an_error_in_the_step_passes_through_and_ends_the_recording():
    def step():
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        allocator_peak(step)
    assert allocator_peak(rise_and_fall).peak_bytes == 12 * KIB


def test_what_cannot_be_read_is_refused():
    with pytest.raises(UsageError, match="cpu or cuda"):
        allocator_peak(rise_and_fall, "meta")
    with cpu_allocations(), pytest.raises(UsageError, match="another profiler"):
        allocator_peak(rise_and_fall)

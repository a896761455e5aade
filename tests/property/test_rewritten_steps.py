"""Steps with rewrites, chosen at random or found, train as the plain step does, in the memory that was predicted."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import fx, nn

import rekindle
from rekindle.ask import Goal, LeastMemory, MaxOverhead
from rekindle.errors import PlanMismatch
from rekindle.model.judge import plain_activation_bytes
from rekindle.model.plan import Plan
from rekindle.model.rewriting import SLICES, Rewrite
from rekindle.torch.capture.captured import Captured
from rekindle.torch.operators.node_tensors import is_member
from rekindle.torch.operators.rules import draws_random
from rekindle.torch.rewrite import candidates, finding, slices
from rekindle.torch.rewrite.candidates import Rewrites
from rekindle.torch.rewrite.cuts import Cut, cuts_of
from rekindle.torch.rewrite.finding import Allowed
from rekindle.torch.rewrite.probe import Bits
from rekindle.torch.rewrite.region import Region, adds_up, grown, handed_over_whole, is_slice, units
from rekindle.torch.rewrite.rewritten import rewritten
from rekindle.torch.trace import Trace
from rewritten_steps import OPTIONS, as_rewrite, convolutions, plan_of, tokens, traced
from strategies import examples

CLOSE_MOST = 2e-5
Net = tuple[nn.Module, Any]

nets: st.SearchStrategy[Net] = st.one_of(
    st.builds(
        convolutions, batch=st.sampled_from((2, 4, 6)), width=st.sampled_from((4, 8, 12)), side=st.sampled_from((12, 16)),
        groups=st.sampled_from((1, 2)),
    ),
    st.builds(
        tokens, batch=st.sampled_from((2, 4)), length=st.sampled_from((8, 12, 24)), vocabulary=st.sampled_from((64, 130)),
        width=st.sampled_from((8, 16)), heads=st.sampled_from((1, 2)), tied=st.booleans(),
        smoothing=st.sampled_from((0.0, 0.1)),
    ),
)  # fmt: skip
goals = st.one_of(st.just(LeastMemory()), st.builds(lambda x: MaxOverhead(x), st.sampled_from((0.1, 0.5))))


@pytest.fixture(autouse=True, scope="module")
def small_tensors_count() -> Any:
    """Regions and saves of tensors of a few bytes, and no tensor that is put together by one `cat`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(candidates, "CONVOLUTION_SHARE", 0.01)
        patch.setattr(candidates, "SAVE_SHARE", 0.0)
        patch.setattr(slices, "JOINED_MOST_BYTES", 2048)
        yield


def region(draw: st.DrawFn, c: Captured, may: Any) -> Region:
    """A region around any op that can be cut."""
    seeds = [
        n
        for n in c.nodes
        if not (draws_random(n.target) or is_slice(n) or is_member(n)) and any(may(n, k) for k in cuts_of(n))
    ]
    assume(seeds)
    seed = draw(st.sampled_from(seeds))
    cut = draw(st.sampled_from([k for k in cuts_of(seed) if may(seed, k)]))
    cuts = grown(seed, cut, draw(st.sampled_from((0, 1024, 8192))), may)
    found = [k for k in (2, 3, 4) if k <= units(cuts)]
    assume(found)
    kept = frozenset(n for n in cuts if n is not seed) if draw(st.booleans()) and not _made_with(cuts) else frozenset()
    return Region(cuts, draw(st.sampled_from(found)), kept)


def _made_with(cuts: dict[fx.Node, Cut]) -> bool:
    """Whether ops that run whole too would write, or be added up, twice."""
    return any(adds_up(c) for c in cuts.values())


def chosen(draw: st.DrawFn, plain: Trace, parity: str) -> tuple[Rewrite, ...]:
    """Smaller saves or none, and one or two regions in slices."""
    steps = Rewrites(plain.lowered, plain_activation_bytes(plain.graph)).smaller_saves() if draw(st.booleans()) else ()
    c, bits = rewritten(plain.lowered.captured, steps), Bits()
    for _ in range(draw(st.integers(1, 2))):
        whole = handed_over_whole(c)
        made = region(draw, c, lambda n, cut, w=whole: n not in w and (parity == "close" or not adds_up(cut)))
        size = units(made.cuts)
        if parity == "bitwise":
            assume(all(bits.same(n, k, made.slices, size) for n, k in made.cuts.items()))
        step = as_rewrite(c.nodes, made)
        try:
            c = rewritten(c, [step])
        except PlanMismatch:  # a result would lie in memory in another way
            assume(False)
        steps = (*steps, step)
    return steps


def found(plain: Trace, parity: str, count: int) -> tuple[Rewrite, ...]:
    """The rewrites that planning finds, in so many slices."""
    close = parity == "close"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding, "SLICES_USUAL", count)
        patch.setattr(candidates, "REGIONS_MOST", 3)
        may = (lambda n, cut: True) if close else (lambda n, cut: not adds_up(cut))
        return Rewrites(plain.lowered, plain_activation_bytes(plain.graph)).in_slices(
            Allowed(may, None if close else Bits(), far=True)
        )


def assert_trains_alike(net: Net, plan: Plan | None, parity: str) -> None:
    if plan is None:  # the rewritten step costs more than the goal allows, even without recomputation
        return
    assert plan.rewriting is not None
    sums = plan.rewriting.sums
    check = rekindle.verify(*net, plan)
    assert check.ok, check.differences
    if parity == "bitwise":
        assert sums == ()
        assert not check.close
        assert (check.loss_equal, check.gradients_equal, check.buffers_equal, check.rng_equal) == (True,) * 4
    assert check.close.keys() <= {"loss", "gradients", "buffers"}
    assert check.largest_difference <= CLOSE_MOST
    if "gradients" in check.close:
        assert check.close["gradients"][1] in sums
    slack = max(0.01 * check.predicted_peak_bytes, 16 * 1024)
    assert abs(check.measured_peak_bytes - check.predicted_peak_bytes) <= slack


@examples(60)
@given(st.data(), nets, goals, st.sampled_from(("bitwise", "close")))
def test_rewrites_at_random(data: st.DataObject, net: Net, goal: Goal, parity: str) -> None:
    plain = traced(*net)
    steps = data.draw(st.composite(lambda draw: chosen(draw, plain, parity))())
    assert_trains_alike(net, plan_of(plain, steps, replace(OPTIONS, goal=goal, parity=parity)), parity)


@examples(40)
@given(nets, goals, st.sampled_from(("bitwise", "close")), st.sampled_from((2, 3, 4)))
def test_rewrites_as_they_are_found(net: Net, goal: Goal, parity: str, count: int) -> None:
    plain = traced(*net)
    options = replace(OPTIONS, goal=goal, parity=parity)
    for steps in dict.fromkeys(
        (Rewrites(plain.lowered, plain_activation_bytes(plain.graph)).smaller_saves(), found(plain, parity, count))
    ):
        if steps:
            assert_trains_alike(net, plan_of(plain, steps, options), parity)


def test_slices_are_found_in_both_kinds_of_nets() -> None:
    """Else the tests above would test nothing."""
    for net in (convolutions(4, 8, 16), tokens(4, 12, 130, 16)):
        for parity in ("bitwise", "close"):
            steps = found(traced(*net), parity, 4)
            assert any(s.kind == SLICES for s in steps)


@examples(20)
@given(st.data(), nets)
def test_the_original_stays_as_it_is(data: st.DataObject, net: Net) -> None:
    from rekindle.torch.lowering.normalise import lower

    plain = traced(*net)
    c = plain.lowered.captured
    text, before = str(c.nodes[0].graph), lower(c, "net", 0).graph.hash
    metas = [dict(n.meta) for n in c.nodes]
    data.draw(st.composite(lambda draw: chosen(draw, plain, "close"))())
    assert (str(c.nodes[0].graph), lower(c, "net", 0).graph.hash) == (text, before)
    assert [n.meta.keys() for n in c.nodes] == [m.keys() for m in metas]
    assert all(n.meta["val"] is m["val"] for n, m in zip(c.nodes, metas, strict=True))


def test_torch_is_deterministic_here() -> None:
    """Two plain steps of the nets agree: differences above come from plans."""
    for model, sample in (convolutions(4, 8, 16), tokens(4, 12, 130, 16)):
        runs = []
        for _ in range(2):
            torch.manual_seed(0)
            model.zero_grad()
            model(*sample).backward()
            runs.append([p.grad.clone() for p in model.parameters()])  # type: ignore[union-attr]
        assert all(torch.equal(a, b) for a, b in zip(*runs, strict=True))

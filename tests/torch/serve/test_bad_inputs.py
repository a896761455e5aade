"""Bad input is refused before any long work, by an error of ours that names what was asked and what to do; model, sample,
random states and files are as they were."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

import rekindle
from refused import (  # noqa: F401  never is a fixture of every test
    Held,
    Net,
    Refused,
    Scale,
    a_plan,
    a_trace,
    batch,
    called,
    frozen_sparse,
    holding_inferred,
    holding_quantised,
    inferred,
    left_alone,
    model_is,
    never,
    option,
    plan_it,
    planned,
    sample_is,
    under_compile,
    under_vmap,
)
from rekindle import FormatError, Graph, Op, Schedule, TraceError, UsageError, Value
from rekindle.torch import accept

MODELS = [
    model_is("a function", lambda: lambda x: x, "nn.Module"),
    model_is("a class", lambda: nn.Linear, r"the class Linear.*Linear\(…\)"),
    model_is("None", lambda: None, "model is None"),
    model_is("an int", lambda: 3, "int, not a torch.nn.Module"),
    model_is("a str", lambda: "resnet50", "str, not a torch.nn.Module"),
    model_is("DataParallel", lambda: nn.DataParallel(Net()), "DataParallel.*model.module.*before it is wrapped"),
    model_is("compiled", lambda: torch.compile(Net(), backend="eager"), "torch.compile.*_orig_mod"),
    model_is("scripted", lambda: torch.jit.script(nn.Linear(4, 4)), "ScriptModule"),
    model_is("without parameters", Scale, "nothing to train"),
    model_is("lazy", lambda: nn.Sequential(nn.LazyLinear(4)), "'0.weight' is uninitialised.*once"),
    model_is("on meta", lambda: Net().to("meta"), "'first.weight' is on the meta device.*to_empty"),
    model_is("sparse", frozen_sparse, "'first.weight' is sparse"),
    model_is("quantised", holding_quantised, "'first.weight' is quantised"),
    model_is(
        "made in inference mode", lambda: inferred(Net), "parameter '.*' was made under .*inference_mode.*Parameter"
    ),
    model_is(
        "with an attribute of inference mode",
        lambda: holding_inferred(vars),
        "attribute 'seen' was made.*inference_mode",
    ),
    model_is(
        "with a buffer of inference mode", holding_inferred, "buffer 'seen' was made under torch.inference_mode.*clone"
    ),
    model_is("with a planned part", lambda: nn.Sequential(planned()), r"'0' is planned already.*restore"),
    model_is("frozen", lambda: Net().requires_grad_(False), "requires grad", TraceError),
    model_is("of no result", lambda: Net(lambda y: None), "no tensor.*returns NoneType", TraceError),
    model_is("of an opaque result", lambda: Net(lambda y: iter([y])), "no tensor.*returns list_iterator", TraceError),
    model_is("of a detached result", lambda: Net(torch.Tensor.detach), "requires grad", TraceError),
]


SAMPLES = [
    sample_is("None", lambda: None, "sample is None"),
    sample_is("a str", lambda: "x", "sample is of type str"),
    sample_is("a generator", lambda: (x for x in [batch()]), "generator"),
    sample_is("a set", lambda: {batch()}, "set"),
    sample_is("a NumPy array", lambda: np.zeros((4, 4)), "torch.from_numpy"),
    sample_is("a NumPy array inside", lambda: ([np.zeros((4, 4))],), r"sample\[0\]\[0\].*torch.from_numpy"),
    sample_is("a generator inside", lambda: {"x": (x for x in [1])}, r"sample\['x'\] is a generator"),
    sample_is("a set inside", lambda: ({batch()},), r"sample\[0\] is a set"),
    sample_is("an object that holds tensors", lambda: (Held(batch()),), r"sample\[0\] is a Held that holds tensors"),
    sample_is("a module", lambda: (nn.Linear(4, 4),), r"sample\[0\] is a Linear that holds tensors"),
    sample_is("keyed by numbers", lambda: {0: batch()}, "key 0"),
    sample_is("empty", lambda: (), "missing 1 required positional argument: 'x'", TraceError),
    sample_is("too long", lambda: (batch(), batch()), "itself fails.*TypeError.*positional arguments", TraceError),
    sample_is("of a wrong keyword", lambda: {"y": batch()}, "itself fails.*'y'", TraceError),
    sample_is("of inference mode", lambda: inferred(batch), r"planned steps cannot use it.*sample\.clone"),
    sample_is("of doubles", lambda: batch().double(), "the module itself fails.*dtype", TraceError),
    sample_is("of ints", lambda: torch.ones(4, 4, dtype=torch.long), "the module itself fails.*dtype", TraceError),
    sample_is("of another shape", lambda: torch.rand(4, 5), "the module itself fails.*shapes", TraceError),
    sample_is("on meta", lambda: batch().to("meta"), "sample is on the meta device"),
    sample_is("sparse", lambda: batch().to_sparse(), "sparse.*to_dense"),
    sample_is("sparse by rows", lambda: batch().to_sparse_csr(), "sparse.*to_dense"),
    sample_is("nested", lambda: torch.nested.nested_tensor([batch(), batch()]), "nested tensor.*pad"),
    sample_is("jagged", lambda: torch.nested.nested_tensor([batch()], layout=torch.jagged), "nested tensor.*pad"),
    sample_is("quantised", lambda: torch.quantize_per_tensor(batch(), 0.1, 0, torch.quint8), "quantised.*dequantize"),
]


OPTIONS = [
    *(option("time_limit", x, "time_limit=.*above 0") for x in ("a", -1, 0, float("nan"), float("inf"), True)),
    *(option("seed", x, "seed=.*whole number") for x in ("a", -1, 1.5, 10**30, None, True)),
    option("solver", 3, "solver=3 is unknown.*chen-sqrt"),
    option("solver", [], r"solver=\[\] is unknown"),
    option("solver", "chensqrt", "did you mean 'chen-sqrt'"),
    option("cost", 3, "cost=3.*seconds, flops, unit"),
    option("cost", "second", "did you mean 'seconds'"),
    option("loss", 3, "loss=3.*auto, all"),
    option("loss", ["all"], "loss=.*auto, all"),
    option("on_new_shape", 3, "on_new_shape=3.*plan, plain, error"),
    option("on_new_shape", "plane", "did you mean 'plan"),
    option("progress", 3, "progress=3 cannot be called"),
    option("check", 3, "check=3 must be True or False"),
    option("check", None, "check=None must be True or False"),
    option("optimizer", 3, "optimizer=3.*torch.optim"),
    option("optimizer", nn.Linear, "optimizer=.*torch.optim", "a class of another kind"),
    option("parity", "exact", "parity='exact'.*bitwise, close"),
    option("parity", None, "parity=None.*bitwise, close"),
    option("offload", 1, "offload=1"),
    option("offload", "always", "offload='always'.*auto"),
    option("host_budget", "1GiB", "host_budget=.*offload=True beside it"),
    called("offload of FLOPs", lambda m, x: plan_it(m, x, offload=True, cost="flops"), "in seconds"),
    option("unused", None, "unused=None"),
    option("unused", [3], "unused="),
    option("unused", ["logits"], "'logits' names no result of Net"),
    option("must_save", None, "must_save=None"),
    option("must_save", 3, "must_save=3"),
    option("must_save", [3], "must_save="),
    option("must_save", ["frist"], "'frist' names no submodule of Net; did you mean 'first'"),
    option("must_save", "frist", "'frist' names no submodule"),
    option("must_save", ["first", "blocks.*"], r"'blocks.\*' names no submodule.*first, norm"),
    option("budget", "8 potatoes", "8 potatoes"),
    option("budget", None, "got none"),
    option("max_overhead", 0.1, "budget and max_overhead"),
]


CALLS = [
    called("trace(target=3)", lambda m, x: rekindle.trace(m, x, target=3), "h200"),
    called("trace(None)", lambda m, x: rekindle.trace(None, x), "model is None"),
    called("trace(loss=3)", lambda m, x: rekindle.trace(m, x, loss=3), "loss=3"),
    called("trace(progress=3)", lambda m, x: rekindle.trace(m, x, progress=3), "progress=3"),
    called("apply(m, None)", lambda m, x: rekindle.apply(m, None), "plan is None.*rekindle.plan"),
    called("apply(m, path)", lambda m, x: rekindle.apply(m, "plan.json"), r"rekindle.load\('plan.json'\)"),
    called("apply(m, Path)", lambda m, x: rekindle.apply(m, Path("plan.json")), r"rekindle.load\('plan.json'\)"),
    called("apply(m, list)", lambda m, x: rekindle.apply(m, [a_plan()]), "one of the list"),
    called("apply(None, plan)", lambda m, x: rekindle.apply(None, a_plan()), "model is None"),
    called("apply(plan, m)", lambda m, x: rekindle.apply(a_plan(), m), "Plan, not a torch.nn.Module"),
    called("apply(on_new_shape)", lambda m, x: rekindle.apply(m, a_plan(), 3), "on_new_shape=3"),
    called("restore(3)", lambda m, x: rekindle.restore(3), "int, not a torch.nn.Module"),
    called("restore(None)", lambda m, x: rekindle.restore(None), "model is None"),
    called("load(5)", lambda m, x: rekindle.load(5), "5 is not the path"),
    called("load(None)", lambda m, x: rekindle.load(None), "None is not the path"),
    called("load(directory)", lambda m, x: rekindle.load(Path(__file__).parent), "cannot read", FormatError),
    called("load('')", lambda m, x: rekindle.load(""), "cannot read", FormatError),
    called("save(5)", lambda m, x: a_plan().save(5), "5 is not the path"),
    called("plan(None)", lambda m, x: rekindle.plan(None, 1.0), "not None.*rekindle.trace"),
    called("plan(m)", lambda m, x: rekindle.plan(m, 1.0), "Net.*rekindle.trace"),
    called("plan(seed)", lambda m, x: rekindle.plan(a_trace(), 1.0, seed="a"), "seed='a'"),
    called("frontier(3)", lambda m, x: rekindle.frontier(3), "int.*rekindle.trace"),
    called("frontier(time_limit)", lambda m, x: rekindle.frontier(a_trace(), time_limit="a"), "time_limit='a'"),
    called("frontier(solver)", lambda m, x: rekindle.frontier(a_trace(), solver=3), "solver=3"),
    called("verify(m, x, 3)", lambda m, x: rekindle.verify(m, x, 3), "plan is of type int"),
    called("verify(m, x)", lambda m, x: rekindle.verify(m, x), "no plan"),
    called("verify(3, x)", lambda m, x: rekindle.verify(3, x), "int, not a torch.nn.Module"),
    called("verify(sample)", lambda m, x: rekindle.verify(m, inferred(x.clone), a_plan()), "inference_mode"),
    called("verify(loss)", lambda m, x: rekindle.verify(m, x, a_plan(), loss=3), "loss=3"),
    called("simulate(3, 4)", lambda m, x: rekindle.simulate(3, 4), "int and int"),
    called("simulate(trace, plan)", lambda m, x: rekindle.simulate(a_trace(), a_plan()), ".graph and .schedule"),
    called("simulate(cost)", lambda m, x: rekindle.simulate(a_plan().graph, a_plan().schedule, 3), "cost=3"),
    called("Schedule(3)", lambda m, x: Schedule(3, ""), "3 is no step"),
    called("Schedule([3])", lambda m, x: Schedule([3], ""), "3 is no step"),
    called("Graph(None)", lambda m, x: Graph(None, (), ()), "Value", FormatError),
    called("Graph of ints", lambda m, x: Graph([1], [], []), "Value", FormatError),
    called("Graph of a half byte", lambda m, x: Graph([Value(1.5)], [], []), "whole numbers", FormatError),
    called("Graph of text ids", lambda m, x: Graph([Value(1)], [Op("a", (), ("0",))], []), "whole", FormatError),
    called("Graph of no time", lambda m, x: Graph((), [Op("a", (), (), float("nan"))], []), "seconds", FormatError),
    called("under vmap", under_vmap, "torch.func"),
    called("under grad", lambda m, x: torch.func.grad(lambda y: plan_it(m, y)(y).sum())(x), "torch.func"),
    called("under jvp", lambda m, x: torch.func.jvp(lambda y: rekindle.trace(m, y), (x,), (x,)), "torch.func"),
    called("compiled", under_compile(plan_it), "torch.compile"),
    called("trace compiled", under_compile(lambda m, x: rekindle.trace(m, x)), "torch.compile"),
]  # fmt: skip


TABLE = [*MODELS, *SAMPLES, *OPTIONS, *CALLS]


@pytest.mark.parametrize("refused", TABLE, ids=[r.name for r in TABLE])
def test_refused_before_any_long_work(refused: Refused) -> None:
    model, sample = refused.make()
    a_plan()  # some calls use it: made before the random states are looked at
    with left_alone(model, sample), pytest.raises(refused.error, match=refused.words):
        refused.call(model, sample)


# -- wrappers and shards: with a process group of one ------------------------------------------------------------------
@pytest.fixture
def group() -> Iterator[None]:
    if not torch.distributed.is_available():
        pytest.skip("torch.distributed is not available")
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    yield
    torch.distributed.destroy_process_group()


def sharded() -> nn.Module:
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    return fully_shard(Net(), mesh=init_device_mesh("cpu", (1,)))


@pytest.mark.usefixtures("group")
def test_wrapped_and_sharded_models_are_told_the_order_that_works() -> None:
    x = batch()
    a_plan()
    wrapped = nn.parallel.DistributedDataParallel(Net())
    with left_alone(wrapped, x):
        for call in (plan_it, lambda m, x: rekindle.trace(m, x), lambda m, x: rekindle.apply(m, a_plan())):
            with pytest.raises(UsageError, match="DistributedDataParallel.*model.module.*before it is wrapped"):
                call(wrapped, x)
    for call in (lambda m, x: rekindle.trace(m, x), lambda m, x: plan_it(m, x, strict=True)):
        with pytest.raises(UsageError, match="DTensor.*Plan these submodules first.*then call fully_shard"):
            call(sharded(), x)
    with pytest.raises(TraceError, match="sharded.*plan it first, then call fully_shard.*No part of the model"):
        plan_it(sharded(), x)


def test_a_wrapper_is_known_by_its_class_alone() -> None:
    """FSDP1 wants an accelerator; its name is enough."""
    kind = type("FullyShardedDataParallel", (nn.Module,), {"__module__": "torch.distributed.fsdp"})
    with pytest.raises(UsageError, match="FullyShardedDataParallel.*model.module"):
        plan_it(kind(), batch())
    mine = type("DataParallel", (Net,), {"__module__": "mine"})()  # a class of the user's that has the same name
    accept.module(mine)

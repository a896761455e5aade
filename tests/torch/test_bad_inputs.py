"""Bad input is refused before any long work, by an error of ours that names what was asked and what to do; model, sample,
random states and files are as they were."""

from __future__ import annotations

import contextlib
import functools
import random
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

import rekindle
from extra_solver import extra_solver
from rekindle import FormatError, Graph, Op, RekindleError, Schedule, TraceError, UsageError, Value
from rekindle.torch import accept
from rekindle.torch.check import probe as probing
from rekindle.torch.run.planned import PlannedForward


class Net(nn.Module):
    """Dropout draws, batch norm writes statistics, an attribute counts the calls."""

    def __init__(self, after: Callable[[torch.Tensor], Any] | None = None):
        super().__init__()
        self.first, self.norm, self.drop, self.last = nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Dropout(), nn.Linear(8, 4)
        self.after, self.calls = after, 0

    def forward(self, x: torch.Tensor) -> Any:
        self.calls += 1
        y = self.last(self.drop(torch.tanh(self.norm(self.first(x)))))
        return self.after(y) if self.after else y


class Scale(nn.Module):
    """Has no parameters."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (2 * x).tanh()


class Held:
    def __init__(self, x: torch.Tensor):
        self.x = x


class Reads(nn.Module):
    """Looks into its argument."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)

    def forward(self, held: Any) -> torch.Tensor:
        x = held.x if isinstance(held, Held) else next(iter(held))
        return self.layer(x)


def batch() -> torch.Tensor:
    return torch.rand(4, 4)


class NeverAsked(Exception):
    """A solver was asked."""


@pytest.fixture(autouse=True)
def never() -> Iterator[None]:
    """A solver that must not be reached: what is refused late raises its error."""

    def solve(problem: Any) -> Any:
        raise NeverAsked

    with extra_solver("never", solve):
        yield


def plan_it(model: Any, sample: Any, **options: Any) -> Any:
    return rekindle.checkpoint(model, sample, **({"budget": 1.0, "solver": "never"} | options))


def _seen(model: Any, sample: Any) -> dict[str, Any]:
    """All that a failure must leave as it was, comparable by ==."""
    found: dict[str, Any] = {
        "torch": torch.get_rng_state().tolist(), "NumPy": str(np.random.get_state(legacy=False)),
        "Python": random.getstate(), "grad mode": torch.is_grad_enabled(), "inference": torch.is_inference_mode_enabled(),
        "deterministic": torch.are_deterministic_algorithms_enabled(), "dtype": torch.get_default_dtype(),
    }  # fmt: skip
    tensors = [sample] if isinstance(sample, torch.Tensor) else sample if isinstance(sample, tuple | list) else []
    for i, t in enumerate(tensors):
        if isinstance(t, torch.Tensor) and t.layout is torch.strided and not (t.is_meta or t.is_nested):
            version = None if t.is_inference() else t._version
            found[f"sample {i}"] = (str(_numbers(t)), t.requires_grad, version)
            if t.is_leaf:
                found[f"gradient {i}"] = t.grad
    if isinstance(model, nn.Module) and not isinstance(model, torch.jit.ScriptModule):
        for name, m in model.named_modules():
            found |= {
                f"{name}.{k}": [*x.items()] if isinstance(x, dict) else list(x)
                for k, x in m.__dict__.items()
                if k.endswith("_hooks")
            }
            found[f"{name}: attributes"] = sorted(m.__dict__)
            found |= {f"{name}.{k}": x for k, x in m.__dict__.items() if isinstance(x, int | bool | PlannedForward)}
        for name, t in [*model.named_parameters(), *model.named_buffers()]:
            found[f"{name}: itself"] = (id(t), t.requires_grad)
            if not (torch.nn.parameter.is_lazy(t) or t.is_meta):
                found[f"{name}: numbers"] = (str(_numbers(t)), None if t.is_inference() else t._version)
                found[f"{name}: gradient"] = id(t.grad)
    return found


def _numbers(t: torch.Tensor) -> Any:
    t = t.detach()
    return (t.int_repr() if t.is_quantized else t.to_dense() if t.is_sparse else t).tolist()


@contextlib.contextmanager
def left_alone(model: Any, sample: Any = None) -> Iterator[None]:
    before = _seen(model, sample)
    yield
    after = _seen(model, sample)
    assert [k for k in before.keys() | after.keys() if before.get(k) != after.get(k)] == []


class Refused(NamedTuple):
    """A call that is refused: `make` gives (model, sample), `call` is what is done with them."""

    name: str
    make: Callable[[], tuple[Any, Any]]
    error: type[RekindleError]
    words: str
    call: Callable[..., Any] = plan_it


def model_is(name: str, make: Callable[[], Any], words: str, error: type[RekindleError] = UsageError) -> Refused:
    return Refused(f"model: {name}", lambda: (make(), batch()), error, words)


def sample_is(name: str, make: Callable[[], Any], words: str, error: type[RekindleError] = UsageError) -> Refused:
    return Refused(f"sample: {name}", lambda: (Net(), make()), error, words)


def option(key: str, given: Any, words: str, shown: str = "") -> Refused:
    return Refused(
        f"{key}={shown or repr(given)}",
        lambda: (Net(), batch()),
        UsageError,
        words,
        lambda m, x: plan_it(m, x, **{key: given}),
    )


def called(name: str, call: Callable[[Any, Any], Any], words: str, error: type[RekindleError] = UsageError) -> Refused:
    return Refused(name, lambda: (Net(), batch()), error, words, call)


def inferred(make: Callable[[], Any]) -> Any:
    with torch.inference_mode():
        return make()


def frozen_sparse() -> nn.Module:
    model = Net()
    model.first.weight = nn.Parameter(torch.eye(8, 4).to_sparse())
    return model


def holding_quantised() -> nn.Module:
    model = Net()
    model.first.weight = nn.Parameter(torch.quantize_per_tensor(torch.rand(8, 4), 0.1, 0, torch.quint8), False)
    return model


def planned(model: nn.Module | None = None) -> nn.Module:
    return rekindle.checkpoint(model or Net(), batch(), 1.0, solver="chen-sqrt")


@functools.cache
def a_trace() -> rekindle.Trace:
    return rekindle.trace(Net(), batch())


@functools.cache
def a_plan() -> rekindle.Plan:
    return rekindle.plan(a_trace(), 1.0, solver="chen-sqrt")


def under_vmap(model: Any, sample: Any) -> Any:
    return torch.func.vmap(lambda x: plan_it(model, x))(sample[None])


def under_compile(call: Callable[..., Any]) -> Callable[..., Any]:
    return lambda m, x: torch.compile(call, backend="eager")(m, x)


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
    model_is("made in inference mode", lambda: inferred(Net), "inference_mode and cannot be trained"),
    model_is("with a planned part", lambda: nn.Sequential(planned()), r"'0' is planned already.*restore"),
    model_is("frozen", lambda: Net().requires_grad_(False), "requires grad", TraceError),
    model_is("of no result", lambda: Net(lambda y: None), "no tensor.*returns NoneType", TraceError),
    model_is("of an opaque result", lambda: Net(Held), "no tensor.*returns Held", TraceError),
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
    sample_is("not a leaf", lambda: batch().requires_grad_() * 2, r"sample\.detach\(\)"),
    sample_is("of inference mode", lambda: inferred(batch), "inference_mode"),
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
    with pytest.raises(UsageError, match="DTensor.*Plan first, then shard"):
        plan_it(sharded(), x)


def test_a_wrapper_is_known_by_its_class_alone() -> None:
    """FSDP1 wants an accelerator; its name is enough."""
    kind = type("FullyShardedDataParallel", (nn.Module,), {"__module__": "torch.distributed.fsdp"})
    with pytest.raises(UsageError, match="FullyShardedDataParallel.*model.module"):
        plan_it(kind(), batch())
    mine = type("DataParallel", (Net,), {"__module__": "mine"})()  # a class of the user's that has the same name
    accept.module(mine)


# -- all that is allowed -----------------------------------------------------------------------------------------------
class Pair(nn.Module):
    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4, dtype=dtype)

    def forward(self, x: torch.Tensor, y: torch.Tensor | None = None, scale: float = 1.0) -> torch.Tensor:
        return self.layer(x) * scale + (0 if y is None else self.layer(y))


ALLOWED: dict[str, Callable[[], Any]] = {
    "no parameters, input requires grad": lambda: (Scale(), batch().requires_grad_()),
    "complex": lambda: (Pair(torch.complex64), batch().to(torch.complex64)),
    "a complex result": lambda: (Net(lambda y: torch.complex(y, y)), batch()),
    "the same tensor twice": lambda: (Pair(), (batch(),) * 2),
    "views of one tensor": lambda: (Pair(), tuple(torch.rand(8, 4).split(4))),
    "no rows": lambda: (Pair(), torch.rand(0, 4)),
    "None and numbers among the arguments": lambda: (Pair(), (batch(), None, 2.0)),
    "a list": lambda: (Pair(), [batch(), batch()]),
    "planned already": lambda: (planned(Pair()), batch()),
    "some frozen": lambda: (nn.Sequential(nn.Linear(4, 4).requires_grad_(False), nn.Linear(4, 4)), batch()),
}


@pytest.mark.parametrize("make", ALLOWED.values(), ids=ALLOWED)
def test_unusual_and_allowed(make: Callable[[], Any]) -> None:
    model, sample = make()
    assert rekindle.checkpoint(model, sample, 1.0, solver="chen-sqrt") is model
    assert isinstance(model.forward, PlannedForward)


@contextlib.contextmanager
def default_device(name: str) -> Iterator[None]:
    torch.set_default_device(name)
    try:
        yield
    finally:
        torch.set_default_device(None)


@contextlib.contextmanager
def default_dtype(dtype: torch.dtype) -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        yield
    finally:
        torch.set_default_dtype(before)


SETTINGS: dict[str, Callable[[], Any]] = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu"),
    "default device": lambda: default_device("meta"),
    "default dtype": lambda: default_dtype(torch.float64),
    "anomaly mode": lambda: torch.autograd.set_detect_anomaly(True),
}


@pytest.mark.filterwarnings("ignore:Anomaly Detection")
@pytest.mark.parametrize("setting", SETTINGS.values(), ids=SETTINGS)
def test_planned_and_checked_under_any_setting(setting: Callable[[], Any]) -> None:
    model, x = Net(), batch()
    with setting(), left_alone(nn.Identity(), x):
        rekindle.checkpoint(model, x, 1.0, solver="chen-sqrt")
    with contextlib.nullcontext() if setting is not SETTINGS["default device"] else setting():
        model(x).sum().backward()
    assert all(p.grad is not None for p in model.parameters())


def test_options_of_other_number_types_are_as_good() -> None:
    found = rekindle.plan(a_trace(), 1.0, solver="chen-sqrt", seed=np.int64(3), time_limit=np.float32(5))
    assert found.solver == "chen-sqrt"
    optimizer = torch.optim.SGD(Net().parameters(), 0.1)
    for given in (None, optimizer, torch.optim.AdamW, "adamw"):
        accept.optimizer(given)


def test_a_bare_string_is_one_name() -> None:
    model, x = Net(), batch()
    one, same = rekindle.trace(model, x, must_save="norm"), rekindle.trace(model, x, must_save=["norm"])
    assert one.options.must_save == same.options.must_save == ("norm",)
    assert one.graph.hash == same.graph.hash != rekindle.trace(model, x).graph.hash


def test_a_second_name_is_told_the_first() -> None:
    model = nn.Sequential(first := nn.Linear(4, 4), first)
    with pytest.raises(UsageError, match="'1' is a second name of the submodule '0'"):
        rekindle.trace(model, batch(), must_save=["1"])


# -- the profiler ------------------------------------------------------------------------------------------------------
def test_a_running_profiler_is_found_at_the_start() -> None:
    model, x = Net(), batch()
    a_plan()
    with torch.autograd.profiler.profile():
        with left_alone(model, x), pytest.raises(UsageError, match="profiler.*check=False"):
            plan_it(model, x)
        with left_alone(model, x), pytest.raises(UsageError, match="profiler"):
            rekindle.verify(model, x, a_plan())
        rekindle.checkpoint(model, x, 1.0, solver="chen-sqrt", check=False)


# -- the one call beforehand -------------------------------------------------------------------------------------------
class Fails(nn.Module):
    def __init__(self, error: Exception):
        super().__init__()
        self.layer, self.error = nn.Linear(4, 4), error

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        raise self.error  # the line to be named


def test_the_failure_of_the_module_itself_is_named_with_its_line() -> None:
    model, x = Fails(KeyError("mask")), batch()
    with left_alone(model, x), pytest.raises(TraceError, match="itself fails on this sample: KeyError: 'mask'") as e:
        plan_it(model, x)
    line = next(i for i, s in enumerate(Path(__file__).read_text().splitlines(), 1) if "# the line to be named" in s)
    assert f"{__file__}:{line}" in str(e.value)
    assert e.value.__cause__ is model.error


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("none left"), MemoryError(), RuntimeError("can't allocate memory")]
)
def test_a_call_that_does_not_fit_says_nothing(error: Exception) -> None:
    model, x = Fails(error), batch()
    with left_alone(model, x):
        probing.probe(model, (x,), {}, model.forward)


class Writes(nn.Module):
    """Writes to a parameter, a buffer, its argument, attributes and all random states."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(4, 4, max_norm=0.5)
        self.register_buffer("count", torch.zeros(2))
        self.seen: list[Any] = []
        self.plain = torch.ones(3)

    def forward(self, x: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
        self.count += 1
        self.plain.mul_(2)
        self.seen.append(x)
        self.last = x
        x.mul_(2)
        random.random(), np.random.rand()
        return self.table(torch.arange(4)) + x + torch.rand(4, generator=generator) + torch.rand(4)


def test_nothing_of_the_one_call_remains() -> None:
    torch.manual_seed(0)
    model, x, generator = Writes(), batch(), torch.Generator()
    state = generator.get_state()
    earlier = (model.table.weight * 2).square().sum()  # saved for a backward that is still to come
    with left_alone(model, (x,)):
        probing.probe(model, (x, generator), {}, model.forward)
    assert torch.equal(generator.get_state(), state)
    assert torch.equal(model.plain, torch.ones(3))
    assert model.seen == []
    earlier.backward()


def test_a_forward_that_needs_gradients_itself_is_tried_with_them() -> None:
    class Force(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = x.detach().requires_grad_()
            return torch.autograd.grad(self.layer(x).tanh().sum(), x, create_graph=True)[0]

    model, x = Force(), batch()
    with left_alone(model, x):
        probing.probe(model, (x,), {}, model.forward)


def test_compiled_parts_are_not_compiled_for_one_call() -> None:
    compiled: list[Any] = []
    part = torch.compile(nn.Linear(4, 4), backend=lambda graph, _: compiled.append(graph) or graph.forward)
    model, x = nn.Sequential(part), batch()
    probing.probe(model, (x,), {}, model.forward)
    assert compiled == []


def test_a_call_that_takes_long_is_cut_short(monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            while True:
                with contextlib.suppress(Exception):
                    x.add_(1)

    monkeypatch.setattr(probing, "LONGEST", 0.2)
    model, x = Endless(), batch()
    with left_alone(model, x):
        probing.probe(model, (x,), {}, model.forward)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_a_sample_on_another_device_is_told_before_planning() -> None:
    model, x = Net().cuda(), batch()
    with left_alone(model, x), pytest.raises(TraceError, match="itself fails.*device"):
        plan_it(model, x)


def test_fake_tensors_are_not_tried() -> None:
    with FakeTensorMode():
        model, x = Fails(ValueError()), batch()
        probing.probe(model, (x,), {}, model.forward)
    model, x = Fails(ValueError()).to("meta"), batch().to("meta")
    probing.probe(model, (x,), {}, model.forward)

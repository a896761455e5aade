"""Suites of models under several methods, one row per model and method.

Peaks and FLOPs of a row are measured on a step that ran; what the plan promised stands beside them as `predicted_mb`.
MB is 2^20 bytes.
"""

from __future__ import annotations

import platform
import re
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ..errors import UsageError
from ..solvers import registry
from ..version import __version__

if TYPE_CHECKING:
    from torch import Tensor, nn

    from ..plan import Plan
    from ..torch.trace import Trace

# What is run where no methods are named. A solver aims for least memory; after @ stands the extra FLOPs it may take.
METHODS = ("plain", "none", "every", "chen-sqrt", "feng", "auto@8%", "auto@33%")
SHORT = {"auto": ("auto@8%", "auto@33%")}
MB = 2**20
Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    """A model and how one step of it is measured.

    mode : what its steps run under.
    step : one training step, forward and backward, by the model's present forward.
    peak_of : instrument: peak bytes of a step.
    extra_bytes : what the instrument counts on top of a plan's activation peak.
    parity : whether the model's step gives the plain step's bits; None where it cannot be told.
    """

    model: nn.Module
    sample: Any
    batch: int
    mode: AbstractContextManager[Any]
    step: Callable[[], None]
    peak_of: Callable[[Callable[[], None]], int]
    extra_bytes: int
    parity: Callable[[], bool | None]

    def measure(self) -> tuple[int, int]:
        """Peak bytes and FLOPs of one step."""
        from ..torch.flops import FlopCount

        with self.mode:
            peak = self.peak_of(self.step)
            with FlopCount() as count:
                self.step()
        return peak, count.total


def run_suite(
    suite: str,
    models: Sequence[str] | None = None,
    methods: Sequence[str] | None = None,
    progress: Callable[[str], None] | None = None,
) -> Iterator[Row]:
    """The rows of a suite, each as soon as it is measured.

    suite : "seeds": the published table at its batch sizes, by its protocol, on fake tensors: needs no GPU, and the
        peaks are the same on every run. "smoke": three tiny models on real tensors, allocator peaks, bitwise parity.
    models : only these; None: all.
    methods : "plain" (eager, without a plan), any solver's name (least memory), or "auto@8%" (least memory within 8 %
        more FLOPs); "auto" is short for both "auto@8%" and "auto@33%". None: METHODS, as far as their solvers exist.

    A method that fails on a model gives a row with status "failed" that says why in `note`.

    Raises
    ------
    UsageError : unknown suite, model or method; the message lists the valid ones.
    """
    if suite not in SUITES:
        raise UsageError(f"suite {suite!r} is unknown; choose one of: {', '.join(SUITES)}")
    known = SUITES[suite]()
    for name in models or ():
        if name not in known:
            raise UsageError(f"suite {suite!r} has no model {name!r}; it has: {', '.join(known)}")
    tell = progress or (lambda _: None)
    return _rows(suite, {m: known[m] for m in models or known}, _methods(methods, tell), tell)


def _methods(asked: Sequence[str] | None, tell: Callable[[str], None]) -> list[str]:
    """The methods to run; those of METHODS whose solver does not exist are left out."""
    solvers = {s.name for s in registry.all_solvers()}
    found: dict[str, None] = {}
    for name in METHODS if asked is None else [m for a in asked for m in SHORT.get(a, (a,))]:
        solver, _ = _parse(name)
        if name == "plain" or solver in solvers:
            found[name] = None
        elif name in METHODS:
            tell(f"{name} is left out: there is no such solver")
        else:
            raise UsageError(f"method {name!r} is unknown; choose plain or one of: {', '.join(sorted(solvers))}")
    return list(found)


def _parse(method: str) -> tuple[str, dict[str, Any]]:
    """Solver and goal: "auto@8%" -> ("auto", {"max_overhead": 0.08})."""
    m = re.fullmatch(r"(.+)@(\d+(?:\.\d+)?)%", method)
    return (m[1], {"max_overhead": float(m[2]) / 100}) if m else (method, {"minimize": "memory"})


# -- rows --------------------------------------------------------------------------------------------------------------
def _rows(suite: str, models: dict[str, Any], methods: list[str], tell: Callable[[str], None]) -> Iterator[Row]:
    for name, (make, known) in models.items():
        tell(f"{name}: plain step")
        try:
            case: Case = make()
            plain = case.measure()
        except Exception as e:  # one model must not end the suite
            yield from (_row(suite, name, method, known, note=_why(e)) for method in methods)
            continue
        known = known | {"batch": case.batch}
        traced: Trace | Exception | None = None
        seconds = 0.0
        for method in methods:
            if method == "plain":
                yield _row(suite, name, method, known, plain=plain, measured=plain)
                continue
            if traced is None:
                tell(f"{name}: tracing")
                traced, seconds = _traced(case)
            if isinstance(traced, Exception):
                yield _row(suite, name, method, known, plain=plain, note=_why(traced))
                continue
            tell(f"{name}: {method}")
            yield _planned(suite, name, method, known, case, traced, seconds, plain)


def _traced(case: Case) -> tuple[Trace | Exception, float]:
    from ..torch.trace import trace

    start = time.perf_counter()
    try:
        return trace(case.model, case.sample), time.perf_counter() - start
    except Exception as e:
        return e, 0.0


def _planned(
    suite: str, name: str, method: str, known: Row, case: Case, traced: Trace, seconds: float, plain: tuple[int, int]
) -> Row:
    from .. import api

    solver, goal = _parse(method)
    plan: Plan | None = None
    row = partial(_row, suite, name, method, known, plain=plain, trace_seconds=seconds)
    try:
        plan = api.plan(traced, solver=solver, cost="flops", **goal)
        api.apply(case.model, plan, on_new_shape="error")
        try:
            return row(measured=case.measure(), plan=plan, extra_bytes=case.extra_bytes, parity=case.parity())
        finally:
            api.restore(case.model)
    except Exception as e:
        return row(plan=plan, extra_bytes=case.extra_bytes, note=_why(e))


def _row(
    suite: str, name: str, method: str, known: Row, *, plain: tuple[int, int] | None = None,
    measured: tuple[int, int] | None = None, plan: Plan | None = None, extra_bytes: int = 0,
    trace_seconds: float | None = None, parity: bool | None = None, note: str = "",
) -> Row:  # fmt: skip
    """plain, measured : peak bytes and FLOPs."""
    import torch

    failed = measured is None or parity is False
    return {
        "suite": suite, "model": name, "batch": known.get("batch"), "image": known.get("image"),
        "method": method, "solver": None if method == "plain" else _parse(method)[0],
        "peak_mb": None if measured is None else measured[0] / MB,
        "predicted_mb": None if plan is None else (plan.activation_peak_bytes + extra_bytes) / MB,
        "plain_mb": None if plain is None else plain[0] / MB,
        "flops_overhead": None if measured is None or plain is None else measured[1] / plain[1] - 1,
        "parity": parity,
        "trace_seconds": trace_seconds,
        "solve_seconds": None if plan is None else plan.solve_seconds,
        **{k: known.get(k) for k in PUBLISHED},
        "versions": {"rekindle": __version__, "torch": torch.__version__, "python": platform.python_version()},
        "status": "failed" if failed else "ok",
        "note": note or ("the planned step does not give the plain step's bits" if failed else ""),
    }  # fmt: skip


def _why(e: Exception) -> str:
    return f"{type(e).__name__}: {e}"


def compare(rows: Sequence[Row]) -> list[list[str]]:
    """Rows as a table, its header first: one line per model, its published figures and then each method's measured peak
    in MB, with the extra FLOPs behind it."""
    methods = list(dict.fromkeys(r["method"] for r in rows))
    published = [k for k in PUBLISHED if any(r[k] is not None for r in rows)]
    table = [["model", "batch", *(k.removesuffix("_mb").replace("_", " ") for k in published), *methods]]
    for model in dict.fromkeys(r["model"] for r in rows):
        mine = {r["method"]: r for r in rows if r["model"] == model}
        r = next(iter(mine.values()))
        figures = ["-" if r[k] is None else f"{r[k]:,.0f}" for k in published]
        table.append([model, str(r["batch"]), *figures, *(_cell(mine.get(m)) for m in methods)])
    return table


def _cell(row: Row | None) -> str:
    if row is None:
        return "-"
    if row["status"] != "ok":
        return "failed"
    extra = f" ({row['flops_overhead']:+.1%})" if row["flops_overhead"] else ""
    return f"{row['peak_mb']:,.0f}{extra}"


# -- suites ------------------------------------------------------------------------------------------------------------
PUBLISHED = ("published_regular_mb", "published_ogc_mb", "measured_regular_mb", "measured_ogc_nonreentrant_mb")


def _seeds() -> dict[str, Any]:
    """name -> (how to make its case, what is known of it)."""
    from ..zoo import seeds

    found = {}
    for r in seeds.ROWS:
        figures = (r.regular_mb, r.ogc_mb, r.measured_regular_mb, r.measured_ogc_nonreentrant_mb)
        known = {"batch": r.batch, "image": r.image, **dict(zip(PUBLISHED, figures, strict=True))}
        found[r.model] = (partial(_seeds_case, r.model, r.batch, r.image), known)
    return found


def _seeds_case(name: str, batch: int, image: int) -> Case:
    """The published protocol; see `zoo.seeds.PROTOCOL`."""
    import torch

    from .. import zoo
    from ..torch.measure import storage_peak

    model, sample = zoo.load(name, batch=batch, fake=True, image=image, input_grad=True)

    def step() -> None:
        x = torch.rand(batch, 3, image, image, requires_grad=True)
        model(x).sum().backward()

    with sample.fake_mode:
        step()
    held = [*model.parameters(), *model.buffers(), *(p.grad for p in model.parameters() if p.grad is not None)]
    # A plan counts x among what is held and its gradient among what the step makes; the protocol counts both.
    return Case(
        model, sample, batch, sample.fake_mode, step, lambda step: storage_peak(step, held).peak_bytes,
        sample.untyped_storage().nbytes(), lambda: None,
    )  # fmt: skip


def _smoke() -> dict[str, Any]:
    from .. import zoo

    small_gpt: dict[str, Any] = {"n_layer": 2, "d": 64, "length": 32, "vocab": 100, "dropout": 0.1}
    makes: dict[str, Callable[[], tuple[nn.Module, Any]]] = {
        "gpt": lambda: zoo.load("gpt", batch=2, **small_gpt),
        "unet": lambda: zoo.load("unet", batch=2, image=32, width=8, depth=2),
        "cnn": lambda: _cnn(batch=4, image=16),
    }
    return {name: (partial(_smoke_case, make), {}) for name, make in makes.items()}


def _cnn(batch: int, image: int) -> tuple[nn.Module, Tensor]:
    """Convolutions with batch norm, in-place ReLU and dropout."""
    import torch
    from torch import nn

    layers: list[nn.Module] = []
    for c_in, c_out in ((3, 16), (16, 16), (16, 32), (32, 32)):
        layers += [nn.Conv2d(c_in, c_out, 3, padding=1, bias=False), nn.BatchNorm2d(c_out), nn.ReLU(inplace=True)]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(0)
        model = nn.Sequential(*layers, nn.Dropout2d(0.1), nn.AvgPool2d(image), nn.Flatten(), nn.Linear(32, 10))
        return model, torch.rand(batch, 3, image, image)


def _smoke_case(make: Callable[[], tuple[nn.Module, Any]]) -> Case:
    from ..torch.measure import allocator_peak
    from ..torch.trace import call_arguments
    from ..torch.verify import default_loss, verify

    model, sample = make()
    args, kwargs = call_arguments(sample)

    def step() -> None:
        default_loss(model(*args, **kwargs)).backward()  # type: ignore[no-untyped-call]

    step()
    batch = len(args[0] if args else next(iter(kwargs.values())))
    return Case(
        model, sample, batch, nullcontext(), step, lambda step: allocator_peak(step).peak_bytes, 0,
        lambda: verify(model, sample).ok,
    )  # fmt: skip


SUITES: dict[str, Callable[[], dict[str, Any]]] = {"seeds": _seeds, "smoke": _smoke}

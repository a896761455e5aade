"""A planned model and its eager twin, one step of both, and what there is to compare of it."""

from __future__ import annotations

import contextlib
import copy
import logging
import random
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

import rekindle
from rekindle import RekindleError
from twin_models import Counts, Sizes, called, inputs, loss_of, ran_planned

GOALS: list[dict[str, Any]] = [
    {"minimize": "memory"},
    {"budget": 0.5},
    {"max_overhead": 0.5},
    {"budget": 0.5, "offload": True},
]
HOW: dict[str, Any] = {"solver": "storages", "time_limit": 0.1}
SOLVERS = {"Noisy": "hierarchical"}  # it puts a draw that backward alone uses into backward, where it may
PATIENCE = 60.0  # seconds that one action, with the step after it, may take
Action = tuple[str, int]


class Fault(AssertionError):
    """The planned model did what its twin did not."""


class Hang(BaseException):
    """No library may catch it."""


@contextlib.contextmanager
def in_time() -> Iterator[None]:
    """Raises Hang after PATIENCE seconds."""

    def ring(*_: Any) -> None:
        raise Hang

    old = signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, PATIENCE, 5)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


class Lines(logging.Handler):
    """What the library said: warnings come with them in `Pair.said`."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


@dataclass
class Pair:
    """The models, what the actions left to be undone, and what the library said."""

    name: str
    goal: dict[str, Any]
    both: list[nn.Module]  # eager, planned
    sizes: Sizes = field(default_factory=Sizes)
    steps: int = 0
    planned_steps: int = 0
    plain_steps: int = 0
    handles: list[list[Any]] = field(default_factory=list)
    classes: list[tuple[type, Any]] = field(default_factory=list)
    effects: tuple[list[Any], list[Any]] = field(default_factory=lambda: ([], []))
    warned: list[Any] = field(default_factory=list)
    lines: Lines = field(default_factory=Lines)
    words_before: int = 0  # words said when the side effects were last equal, or a hook with others came
    lost: tuple[int, ...] = (0, 0, 0)  # side effects that eager has had and the planned model has not
    watch_plan: bool = True

    @property
    def words(self) -> int:
        return len(self.warned) + len(self.lines.lines)

    @property
    def dtype(self) -> torch.dtype:
        return next(p.dtype for p in self.both[0].parameters())

    def each(self, do: Callable[[nn.Module], Any]) -> list[Any]:
        return [do(m) for m in self.both]

    def submodule(self, k: int, kind: type | tuple[type, ...] = nn.Module) -> str | None:
        """The name of the k-th submodule of that kind; None: there is none."""
        found = [
            n for n, m in self.both[0].named_modules() if n and isinstance(m, kind) and not isinstance(m, nn.ModuleList)
        ]
        return found[k % len(found)] if found else None

    def put(self, name: str, made: nn.Module) -> None:
        """Exchange the submodule of that name for copies of `made`, which goes to the twin itself."""
        path, _, leaf = name.rpartition(".")
        for m, new in zip(self.both, (made, copy.deepcopy(made)), strict=True):
            setattr(m.get_submodule(path), leaf, new)

    def step(self, run: Callable[[Step], None] | None = None, only_numbers: bool = False) -> None:
        """One step of each, compared. only_numbers : a plan need not be in use."""
        self.steps += 1
        ends = []
        for m in self.both:
            s = Step(self, m)
            torch.manual_seed(self.steps)
            random.seed(self.steps)
            try:
                (run or Step.train)(s)
            except RekindleError as e:
                s.error = e
            except Exception as e:
                s.error = e
            s.end()
            ends.append(s)
        eager, planned = ends
        if eager.error is None and planned.error is not None:
            said = str(planned.error).partition("\n")[0]
            raise Fault(f"raises {type(planned.error).__name__}: {said[:300]}") from planned.error
        if eager.error is not None:
            if planned.error is None:
                raise Fault(f"does not raise eager's {type(eager.error).__name__}: {eager.error}")
            self.after_error()
        else:
            wrong = differences(eager.record, planned.record)
            if wrong:
                raise Fault("; ".join(wrong[:4]) + (f" and {len(wrong) - 4} more" if len(wrong) > 4 else ""))
            if not only_numbers and planned.results and self.both[1].training and self.watch_plan:
                ran = all(ran_planned(r) for r in planned.results)
                self.planned_steps += ran
                self.plain_steps += not ran
                if not ran and not self.words:
                    raise Fault("ran plain without a word")
        self.side_effects()

    def side_effects(self) -> None:
        """No side effect is lost without a word. What was lost before, and said then, stays lost."""
        now = [(len(e), getattr(m, "calls", 0) if isinstance(m, Counts) else 0, len(getattr(m, "features", ())))
               for e, m in zip(self.effects, self.both, strict=True)]  # fmt: skip
        lost = tuple(a - b for a, b in zip(*now, strict=True))
        if lost != self.lost and self.words == self.words_before:
            raise Fault(f"side effects (hook calls, counter, list) {now[1]}, eager {now[0]}, without a word")
        self.lost = lost
        if now[0] == now[1]:
            self.words_before = self.words if not any(now[0]) else self.words_before

    def after_error(self) -> None:
        """A call that failed may leave eager's buffers half written: go on from the same."""
        with torch.no_grad():
            for a, b in zip(self.both[0].buffers(), self.both[1].buffers(), strict=True):
                b.copy_(a)
        self.each(lambda m: m.zero_grad())


class Step:
    """One step of one model, and all there is to compare of it."""

    def __init__(self, pair: Pair, model: nn.Module):
        self.pair, self.model, self.sizes = pair, model, pair.sizes
        self.record: dict[str, Any] = {}
        self.given: list[Tensor] = []
        self.results: list[Any] = []
        self.error: Exception | None = None
        self.calls = 0

    def __call__(self, model: Callable[..., Any] | None = None, last: int = 8, dtype: torch.dtype | None = None) -> Any:
        """A call of the model with new inputs; its results go into the record."""
        self.calls += 1
        leaves, given = inputs(
            self.model, self.sizes, dtype or self.pair.dtype, 100 * self.pair.steps + self.calls, last
        )
        self.given += leaves
        held = copy.copy(given)
        with torch.autocast("cpu", torch.bfloat16, enabled=self.sizes.autocast):
            out = called(model or self.model, given, self.sizes.style)
        self.keep("result", out)
        self.keep("arguments after the call", held)
        if model is None and torch.is_grad_enabled():
            self.results.append(out)
        return out

    def keep(self, name: str, x: Any) -> None:
        self.record[f"{name} {len(self.record)}"] = snapshot(x)

    def train(self) -> None:
        self.model.zero_grad(set_to_none=self.sizes.set_to_none)
        loss = loss_of(self())
        self.keep("loss", loss)
        loss.backward()

    def end(self) -> None:
        m = self.model
        self.record |= {f"parameter {k}": snapshot(p) for k, p in m.named_parameters()}
        self.record |= {f"gradient of {k}": snapshot(p.grad) for k, p in m.named_parameters()}
        self.record |= {f"buffer {k}": snapshot(b) for k, b in m.named_buffers()}
        self.record |= {f"gradient of input {i}": snapshot(t.grad) for i, t in enumerate(self.given)}
        self.record |= {"random state": torch.get_rng_state(), "Python's random state": random.getstate()}
        self.record |= {"state_dict keys": list(m.state_dict()), "modes": [x.training for x in m.modules()]}


def snapshot(x: Any) -> Any:
    if isinstance(x, Tensor):
        return x.detach().clone()
    if isinstance(x, dict):
        return {k: snapshot(v) for k, v in x.items()}
    return type(x)(map(snapshot, x)) if isinstance(x, list | tuple) else x


def differences(a: Any, b: Any, name: str = "") -> list[str]:
    """Where two records differ, in words."""
    if isinstance(a, Tensor) and isinstance(b, Tensor):
        if (a.shape, a.dtype) != (b.shape, b.dtype):
            return [f"{name} is {list(b.shape)} {b.dtype}, eager {list(a.shape)} {a.dtype}"]
        if torch.equal(bits(a), bits(b)) or bool(((a == b) & (a != 0) | (a != a) & (b != b)).all()):
            return []
        if not a.is_floating_point() or name == "random state":
            return [f"{name} differs"]
        return [f"{name} differs by {float((a - b).abs().max()):.3g}"]
    if isinstance(a, dict) and isinstance(b, dict) and list(a) == list(b):
        return [d for k in a for d in differences(a[k], b[k], f"{name} {k}".strip())]
    if isinstance(a, list | tuple) and type(a) is type(b) and len(a) == len(b) and name != "Python's random state":
        return [d for i in range(len(a)) for d in differences(a[i], b[i], f"{name}[{i}]")]
    same = type(a) is type(b) and not isinstance(a, Tensor) and a == b
    return [] if same else [f"{name} is {str(b)[:60]}, eager {str(a)[:60]}"]


def bits(t: Tensor) -> Tensor:
    return t.contiguous().flatten().view(torch.uint8) if t.numel() else t


def plan_it(p: Pair) -> bool:
    """Whether the library took the model as it is now; where it does not, it says so and leaves it as it was."""
    _, given = inputs(p.both[1], p.sizes, p.dtype, 0)
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=p.sizes.autocast):
        for goal in (p.goal, {"minimize": "memory"}):
            try:
                rekindle.checkpoint(
                    p.both[1], given, **goal, **HOW | ({"solver": SOLVERS[p.name]} if p.name in SOLVERS else {})
                )
                return True
            except rekindle.InfeasibleBudget:
                continue
            except rekindle.ParityError as e:
                raise Fault(f"checkpoint raises ParityError: {e}") from e
            except rekindle.TraceError:
                return getattr(p.both[1].forward, "plan", None) is not None
            except rekindle.UsageError as e:
                if "is a result of other operations" not in str(e):  # an input that forward writes over is no leaf
                    raise
                return getattr(p.both[1].forward, "plan", None) is not None
    return getattr(p.both[1].forward, "plan", None) is not None

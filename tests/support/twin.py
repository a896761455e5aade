"""A planned model and its eager twin, taken through the same random actions.

Every training step of both starts from the same random state; results, gradients, buffers, inputs and random states must
then be equal bit for bit. A run is a list of (action, number) pairs, so that any run, or any part of it, can be replayed:

    replay("Blocks", {"minimize": "memory"}, [("set_scale", 3), ("forward_hook", 1)])

As a program it tries each action alone on each model: python tests/twin.py [--models A,B] [--actions a,b]
"""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import random
import signal
import sys
import time
import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

import rekindle
from rekindle import RekindleError

SCALE = 1.0  # read by forward of `Blocks`
GOALS: list[dict[str, Any]] = [{"minimize": "memory"}, {"budget": 0.5}, {"max_overhead": 0.5}]
HOW: dict[str, Any] = {"solver": "storages", "time_limit": 0.1}
SOLVERS = {"Noisy": "hierarchical"}  # it puts a draw that backward alone uses into backward, where it may
PATIENCE = 60.0  # seconds that one action, with the step after it, may take
Action = tuple[str, int]


# --- models -----------------------------------------------------------------------------------------------------------


@dataclass
class Config:
    """An object with fields that forward reads."""

    gain: float = 1.0
    residual: bool = True
    note: str = "as made"


class Activation(nn.Module):
    """A submodule whose function is an attribute of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.function = F.gelu

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Block(nn.Module):
    """Linear, BatchNorm, activation, dropout."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(width, width), nn.BatchNorm1d(width)
        self.act, self.dropout = Activation(), nn.Dropout(0.2)

    def forward(self, x: Tensor) -> Tensor:
        return self.dropout(self.act(self.norm(self.linear(x))))


class Blocks(nn.Module):
    """Python attributes that change, drop-path rates in a list, a tied weight, a frozen part, arguments with defaults."""

    names = ("x", "gain", "flip")

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.frozen = nn.Linear(8, 8), nn.Linear(8, 8).requires_grad_(False)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(8, 8)
        self.head.weight = self.stem.weight
        self.scale, self.rates, self.config = 0.5, [0.1, 0.3], Config()

    def forward(self, x: Tensor, gain: float = 1.0, flip: bool = False) -> tuple[Tensor, str]:
        h = self.frozen(self.stem(x)) * self.scale * SCALE * gain
        for rate, block in zip(self.rates, self.blocks, strict=True):
            y = block(h) * self.config.gain
            if self.training and rate > 0:
                y = y * torch.empty_like(y[:, :1]).bernoulli_(1 - rate) / (1 - rate)
            h = h + y if self.config.residual else y
        h = self.head(h)
        return (-h if flip else h), self.config.note


class Attention(nn.Module):
    """A loss in a dict, an optional mask and a weight that may differ at every call."""

    names = ("x", "mask", "weight")

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(8, 24), nn.Linear(8, 8)
        self.norm, self.dropout, self.act = nn.LayerNorm(8), nn.Dropout(0.1), Activation()
        self.scale = 0.35

    def forward(self, x: Tensor, mask: Tensor | None = None, weight: float = 1.0) -> dict[str, Any]:
        q, k, v = self.qkv(self.norm(x)).chunk(3, -1)
        scores = q @ k.transpose(1, 2) * self.scale
        if mask is not None:
            scores = scores.masked_fill(~mask[:, None, :], -1e4)
        h = self.act(self.out(self.dropout(scores.softmax(-1)) @ v)) + x
        return {"loss": h.float().square().mean() * weight, "logits": h, "note": None}


class FromDict(nn.Module):
    """One argument, a dict, with a mask that may be missing and a float."""

    names = ("batch",)

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(8, 16), Activation(), nn.Dropout(0.3), nn.Linear(16, 8))
        self.register_buffer("seen", torch.zeros(8))
        self.config = Config()

    def forward(self, batch: dict[str, Any]) -> Tensor:
        h = self.inner(batch["x"]) * batch["weight"] * self.config.gain
        if batch.get("mask") is not None:
            h = h * batch["mask"][..., None]
        with torch.no_grad():
            self.seen += h.detach().flatten(0, -2).mean(0).to(self.seen.dtype)
        return h


class Noise(torch.autograd.Function):
    """Multiplies by random numbers of its own, in both directions."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        noise = torch.rand_like(x)
        ctx.save_for_backward(noise)
        return x * noise

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Tensor:
        return g * ctx.saved_tensors[0]


class Noisy(nn.Module):
    """A custom autograd.Function, and a tensor hook that uses a random tensor of forward."""

    names = ("x",)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.dropout, self.act = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.2), Activation()

    def forward(self, x: Tensor) -> Tensor:
        h = self.act(self.a(x))
        y = self.dropout(self.b(Noise.apply(h)))
        noise = torch.rand_like(h)  # the last draw, which backward alone uses
        if h.requires_grad:
            h.register_hook(lambda g: g * noise)
        return y


class Overwrites(nn.Module):
    """Writes over its input, and over what it makes."""

    names = ("x",)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.2, inplace=True)
        self.scale = 0.5

    def forward(self, x: Tensor) -> Tensor:
        x.mul_(self.scale)
        return self.b(self.dropout(self.a(x)).add_(1).relu())


class Images(nn.Module):
    """Convolutions, BatchNorm, a module that runs twice, a count of calls in a buffer."""

    names = ("x",)

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.conv = nn.Conv2d(2, 4, 3, padding=1), nn.Conv2d(4, 4, 3, padding=1)
        self.norm, self.act, self.dropout = nn.BatchNorm2d(4), nn.ReLU(inplace=True), nn.Dropout2d(0.2)
        self.head = nn.Linear(4, 3)
        self.register_buffer("calls", torch.zeros((), dtype=torch.long))
        self.rates = [0.2]

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.stem(x)
        for _ in range(2):
            h = h + F.dropout(self.act(self.norm(self.conv(h))), self.rates[0], self.training)
        return self.head(self.dropout(h).mean((2, 3)))


class Counts(nn.Module):
    """Python side effects in forward: a counter, and features in a list."""

    names = ("x",)

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b, self.dropout = nn.Linear(8, 8), nn.Linear(8, 8), nn.Dropout(0.2)
        self.calls, self.features = 0, []

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        h = self.a(x).tanh()
        self.features.append(h.shape[0])
        return self.b(self.dropout(h))


MODELS: dict[str, type[nn.Module]] = {
    m.__name__: m for m in (Blocks, Attention, FromDict, Noisy, Overwrites, Images, Counts)
}


@dataclass
class Sizes:
    """What the next calls' inputs are like."""

    batch: int = 4
    length: int = 5
    strided: bool = False  # not contiguous
    requires_grad: bool = False
    masked: bool = True
    vary: bool = False  # another float argument at every call
    style: int = 0  # how arguments are passed
    autocast: bool = False
    set_to_none: bool = True


def inputs(
    model: nn.Module, s: Sizes, dtype: torch.dtype, seed: int, last: int = 8
) -> tuple[list[Tensor], dict[str, Any]]:
    """(the floating-point tensors, the arguments by name); the same for the same seed."""
    g = torch.Generator().manual_seed(seed)
    kind = type(model)
    shape = {Images: (s.batch, last // 4, 4 + s.length, 8), Blocks: (s.batch, last)}.get(
        kind, (s.batch, s.length, last)
    )
    x = torch.randn(shape[::-1] if s.strided else shape, generator=g, dtype=torch.float64).to(dtype)
    x = x.permute(*range(x.ndim - 1, -1, -1)) if s.strided else x
    leaf = x.requires_grad_(s.requires_grad)
    x = leaf * 1 if kind is Overwrites and s.requires_grad else leaf  # a leaf that requires grad cannot be written over
    weight = 1.0 + 0.125 * (seed % 7) if s.vary else 1.0
    mask = (torch.rand(shape[:2], generator=g) > 0.3) if s.masked else None
    if kind is Blocks:
        return [leaf], {"x": x, "gain": weight, "flip": False}
    if kind is Attention:
        return [leaf], {"x": x, "mask": mask, "weight": weight}
    if kind is FromDict:
        return [leaf], {"batch": {"x": x, "weight": weight} | ({} if mask is None else {"mask": mask})}
    return [leaf], {"x": x}


DEFAULTS = {"gain": 1.0, "flip": False, "mask": None, "weight": 1.0}


def called(model: Callable[..., Any], given: dict[str, Any], style: int) -> Any:
    """The call, with what has its default left out (0, 1), as keywords (1), in another order (2), all positional (3)."""
    if style % 4 in (0, 1):
        first = next(iter(given))
        given = {k: v for k, v in given.items() if k == first or v is not DEFAULTS[k] and v != DEFAULTS[k]}
        positional = style % 4 == 0
        return model(given[first], **{k: v for k, v in given.items() if k != first}) if positional else model(**given)
    return model(**dict(reversed(given.items()))) if style % 4 == 2 else model(*given.values())


def loss_of(result: Any) -> Tensor:
    if isinstance(result, dict):
        return result["loss"]
    result = result[0] if isinstance(result, tuple) else result
    return result.float().square().sum() if result.dtype != torch.float64 else result.square().sum()


def scaled(result: Any, by: float) -> Any:
    """A module's result with its floating-point tensors multiplied."""
    if isinstance(result, Tensor):
        return result * by if result.is_floating_point() else result
    if isinstance(result, dict):
        return {k: scaled(v, by) for k, v in result.items()}
    return tuple(scaled(v, by) for v in result) if isinstance(result, tuple) else result


def ran_planned(result: Any) -> bool:
    """Whether a plan made this result: its autograd graph holds the plan's node."""
    todo = [t.grad_fn for t in tensors_in(result) if t.grad_fn is not None]
    seen = set()
    while todo:
        node = todo.pop()
        if node in seen:
            continue
        seen.add(node)
        if "Boundary" in type(node).__name__:
            return True
        todo += [n for n, _ in node.next_functions if n is not None]
    return False


def tensors_in(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict | list | tuple):
        for v in x.values() if isinstance(x, dict) else x:
            yield from tensors_in(v)


# --- the pair ---------------------------------------------------------------------------------------------------------


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
    words_before: int = 0  # words said when the side effects were last equal
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
        """Counts of calls agree, or the library has said something since they last did."""
        now = [(len(e), getattr(m, "calls", 0) if isinstance(m, Counts) else 0, len(getattr(m, "features", ())))
               for e, m in zip(self.effects, self.both, strict=True)]  # fmt: skip
        if now[0] != now[1] and self.words == self.words_before:
            raise Fault(f"side effects (hook calls, counter, list) {now[1]}, eager {now[0]}, without a word")
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


# --- actions ----------------------------------------------------------------------------------------------------------

ACTIONS: dict[str, Callable[[Pair, int], Any]] = {}
STEPS: set[str] = set()  # actions that take a step of their own; an ordinary one follows all the same


def change(do: Callable[[Pair, int], Any]) -> Callable[[Pair, int], Any]:
    """What one does between steps."""
    ACTIONS[do.__name__] = do
    return do


def another(run: Callable[[Step, int], None]) -> Callable[[Step, int], None]:
    """Another kind of step."""
    ACTIONS[run.__name__] = lambda pair, k: pair.step(lambda s: run(s, k), only_numbers=True)
    STEPS.add(run.__name__)
    return run


@change
def no_change(p: Pair, k: int) -> None:
    pass


@change
def mode(p: Pair, k: int) -> None:
    p.each(lambda m: m.train(k % 2 == 0))


@change
def submodule_mode(p: Pair, k: int) -> None:
    name = p.submodule(k)
    p.each(lambda m: m.get_submodule(name).train(not m.get_submodule(name).training))


@change
def batch(p: Pair, k: int) -> None:
    p.sizes.batch = 2 + k % 4


@change
def length(p: Pair, k: int) -> None:
    p.sizes.length = 3 + k % 4


@change
def strides(p: Pair, k: int) -> None:
    p.sizes.strided = not p.sizes.strided


@change
def input_gradients(p: Pair, k: int) -> None:
    p.sizes.requires_grad = not p.sizes.requires_grad


@change
def mask(p: Pair, k: int) -> None:
    p.sizes.masked = not p.sizes.masked


@change
def argument_style(p: Pair, k: int) -> None:
    p.sizes.style = k % 4
    p.step()


@change
def float_argument(p: Pair, k: int) -> None:
    p.sizes.vary = not p.sizes.vary
    p.step()
    p.step()


@change
def autocast(p: Pair, k: int) -> None:
    p.sizes.autocast = not p.sizes.autocast


@change
def zero_grad_style(p: Pair, k: int) -> None:
    p.sizes.set_to_none = not p.sizes.set_to_none


@change
def dropout_p(p: Pair, k: int) -> None:
    name = p.submodule(k, (nn.Dropout, nn.Dropout2d))
    p.each(lambda m: name and setattr(m.get_submodule(name), "p", [0.0, 0.3, 0.6, 0.2][k % 4]))


@change
def set_scale(p: Pair, k: int) -> None:
    p.each(lambda m: hasattr(m, "scale") and setattr(m, "scale", [0.25, 0.5, 0.75, 1][k % 4]))


@change
def set_rate(p: Pair, k: int) -> None:
    def do(m: nn.Module) -> None:
        if hasattr(m, "rates"):
            m.rates[k % len(m.rates)] = [0.0, 0.5, 0.1, 0.7][k % 4]

    p.each(do)


@change
def set_config(p: Pair, k: int) -> None:
    what, value = [("gain", 0.5), ("residual", False), ("note", "changed"), ("gain", 1.0), ("residual", True)][k % 5]
    p.each(lambda m: hasattr(m, "config") and setattr(m.config, what, value))


@change
def swap_activation(p: Pair, k: int) -> None:
    name = p.submodule(k, Activation)
    p.each(lambda m: name and setattr(m.get_submodule(name), "function", [torch.tanh, F.relu, F.gelu, F.silu][k % 4]))


@change
def set_global(p: Pair, k: int) -> None:
    sys.modules[__name__].SCALE = [1.0, 2.0, 0.5][k % 3]  # type: ignore[attr-defined]


@change
def replace_submodule(p: Pair, k: int) -> None:
    name = p.submodule(k, (nn.Linear, Activation, nn.Dropout))
    old = p.both[0].get_submodule(name or "")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(k)
        if isinstance(old, nn.Linear):
            new: nn.Module = nn.Linear(old.in_features, old.out_features, dtype=old.weight.dtype)
            new = nn.Sequential(new, nn.Tanh()) if k % 3 == 0 else new
        else:
            new = nn.Dropout(0.4) if isinstance(old, nn.Dropout) else nn.LeakyReLU()
    p.put(name or "", new.train(old.training))


class Lora(nn.Module):
    """A Linear with an adapter beside it, written by hand."""

    def __init__(self, base: nn.Linear, k: int):
        super().__init__()
        self.base, g = base.requires_grad_(False), torch.Generator().manual_seed(k)
        like = {"dtype": base.weight.dtype, "generator": g}
        self.down = nn.Parameter(torch.randn(2, base.in_features, **like))
        self.up = nn.Parameter(torch.randn(base.out_features, 2, **like))

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


@change
def lora(p: Pair, k: int) -> None:
    name = p.submodule(k, nn.Linear)
    if name is None or name.endswith("base"):
        return
    path, _, leaf = name.rpartition(".")
    for m in p.both:
        setattr(m.get_submodule(path), leaf, Lora(m.get_submodule(name), k).train(m.training))


@change
def pre_hook(p: Pair, k: int) -> None:
    name = p.submodule(k, (nn.Linear, nn.Dropout, Activation, nn.Conv2d))
    p.handles.append(
        p.each(lambda m: m.get_submodule(name).register_forward_pre_hook(lambda _, args: (args[0] * 1.5,)))
    )


@change
def forward_hook(p: Pair, k: int) -> None:
    name = p.submodule(k)
    p.handles.append(
        p.each(lambda m: m.get_submodule(name).register_forward_hook(lambda _, args, out: scaled(out, 0.75)))
    )


@change
def forward_hook_with_effect(p: Pair, k: int) -> None:
    name = p.submodule(k)

    def hook(held: list[Any]) -> Any:
        return lambda _, args, out: held.append(tuple(out.shape))

    p.words_before = p.words
    p.handles.append(
        [m.get_submodule(name).register_forward_hook(hook(e)) for m, e in zip(p.both, p.effects, strict=True)]
    )
    p.step()


@change
def backward_hook(p: Pair, k: int) -> None:
    name = p.submodule(k, (nn.Linear, nn.Conv2d, nn.LayerNorm))

    def hook(_: Any, given: Any, out: Any) -> Any:
        return tuple(None if g is None else g * 0.5 for g in given)

    p.handles.append(p.each(lambda m: m.get_submodule(name).register_full_backward_hook(hook)))


@change
def hook_on_itself(p: Pair, k: int) -> None:
    add = [
        lambda m: m.register_forward_hook(lambda _, args, out: scaled(out, 0.5)),
        lambda m: m.register_forward_pre_hook(lambda _, args, kwargs: (args, kwargs), with_kwargs=True),
        lambda m: m.register_full_backward_pre_hook(lambda _, g: scaled(g, 2.0)),
    ][k % 3]
    p.handles.append(p.each(add))


@change
def remove_hook(p: Pair, k: int) -> None:
    if p.handles:
        for h in p.handles.pop(k % len(p.handles)):
            h.remove()


@change
def parameter_hook(p: Pair, k: int) -> None:
    n = k % len(list(p.both[0].parameters()))
    p.handles.append(
        p.each(
            lambda m: (
                list(m.parameters())[n].register_hook(lambda g: g * 0.5)
                if list(m.parameters())[n].requires_grad
                else torch.zeros(1, requires_grad=True).register_hook(lambda g: g)
            )
        )
    )


def _patched(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
    return scaled(type(self).forward(self, *args, **kwargs), 1.5)


@change
def patch_submodule(p: Pair, k: int) -> None:
    name = p.submodule(k)
    p.each(lambda m: setattr(m.get_submodule(name), "forward", types.MethodType(_patched, m.get_submodule(name))))


@change
def unpatch_submodules(p: Pair, k: int) -> None:
    for m in p.both:
        for s in list(m.modules())[1:]:
            s.__dict__.pop("forward", None)


@change
def patch_class(p: Pair, k: int) -> None:
    kinds = sorted({type(m) for m in p.both[0].modules()} - {nn.ModuleList, nn.Sequential}, key=lambda t: t.__name__)
    kind = kinds[k % len(kinds)]
    old: Any = kind.forward
    p.classes.append((kind, old))
    kind.forward = lambda self, *args, **kwargs: scaled(old(self, *args, **kwargs), 1.25)  # type: ignore[attr-defined]


@change
def unpatch_classes(p: Pair, k: int) -> None:
    while p.classes:
        kind, old = p.classes.pop()
        kind.forward = old  # type: ignore[attr-defined]


class Wrapped:
    """A forward around another, as libraries put it there."""

    def __init__(self, inner: Any):
        self.inner = inner

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return scaled(self.inner(*args, **kwargs), 1.5)


@change
def wrap_forward(p: Pair, k: int) -> None:
    _unwrap(p)
    p.each(lambda m: setattr(m, "forward", Wrapped(m.forward)))


@change
def unwrap_forward(p: Pair, k: int) -> None:
    _unwrap(p)


def _unwrap(p: Pair) -> None:
    for m in p.both:
        wrapped = m.__dict__.get("forward")
        if isinstance(wrapped, Wrapped):
            del m.__dict__["forward"]
            if not isinstance(wrapped.inner, types.MethodType):
                m.__dict__["forward"] = wrapped.inner


@change
def freeze(p: Pair, k: int) -> None:
    """One parameter frozen, or trained again; never the last one that trains."""
    n = k % len(list(p.both[0].parameters()))

    def do(m: nn.Module) -> None:
        q = list(m.parameters())[n]
        if not q.requires_grad or sum(t.requires_grad for t in m.parameters()) > 2:
            q.requires_grad_(not q.requires_grad)

    p.each(do)


@change
def deepcopy(p: Pair, k: int) -> None:
    p.both = p.each(copy.deepcopy)


@change
def state_dict(p: Pair, k: int) -> None:
    g = torch.Generator().manual_seed(k)
    state = {
        key: v + 0.01 * torch.randn(v.shape, generator=g, dtype=v.dtype) if v.is_floating_point() else v.clone()
        for key, v in p.both[0].state_dict().items()
    }
    p.each(lambda m: m.load_state_dict(copy.deepcopy(state)))


@change
def other_dtype(p: Pair, k: int) -> None:
    kind = torch.float32 if p.dtype == torch.float64 else torch.float64
    p.each(lambda m: m.to(kind))


@change
def optimizer_step(p: Pair, k: int) -> None:
    def do(m: nn.Module) -> None:
        optimizer = torch.optim.SGD(m.parameters(), lr=0.01)
        optimizer.step()
        optimizer.zero_grad(set_to_none=k % 2 == 0)

    p.each(do)


@change
def restore_and_apply(p: Pair, k: int) -> None:
    _unwrap(p)
    plan = getattr(p.both[1].forward, "plan", None)
    rekindle.restore(p.both[1])
    p.watch_plan = False
    p.step()
    if plan is not None:
        try:
            rekindle.apply(p.both[1], plan)
            p.watch_plan = True
        except rekindle.PlanMismatch:
            checkpoint_again(p, k)


@change
def checkpoint_again(p: Pair, k: int) -> None:
    _unwrap(p)
    p.goal = GOALS[k % len(GOALS)]
    p.watch_plan = plan_it(p)


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


@another
def no_grad(s: Step, k: int) -> None:
    with torch.no_grad():
        s()


@another
def inference_mode(s: Step, k: int) -> None:
    with torch.inference_mode():
        s()


@another
def accumulate(s: Step, k: int) -> None:
    for _ in range(2):
        loss_of(s()).backward()


@another
def two_calls_one_backward(s: Step, k: int) -> None:
    s.model.zero_grad()
    (loss_of(s()) + loss_of(s())).backward()


@another
def draw_before_backward(s: Step, k: int) -> None:
    s.model.zero_grad()
    loss = loss_of(s())
    s.keep("drawn", torch.rand(k + 1))
    (loss * (1 + torch.rand(()))).backward()


@another
def backward_twice(s: Step, k: int) -> None:
    loss = loss_of(s())
    loss.backward(retain_graph=True)
    loss.backward()


@another
def gradients_of_some(s: Step, k: int) -> None:
    train = [q for q in s.model.parameters() if q.requires_grad]
    some = train[k % len(train) :: 2]
    s.keep("autograd.grad", torch.autograd.grad(loss_of(s()), some, allow_unused=True))


@another
def dropped_result(s: Step, k: int) -> None:
    s()
    s.train()


@another
def fails_in_a_hook(s: Step, k: int) -> None:
    def fail(*_: Any) -> None:
        raise ZeroDivisionError("on purpose")

    handle = s.model.get_submodule(s.pair.submodule(k) or "").register_forward_hook(fail)
    try:
        s.train()
    finally:
        handle.remove()


@another
def bad_shape(s: Step, k: int) -> None:
    loss_of(s(last=12)).backward()


@another
def bad_dtype(s: Step, k: int) -> None:
    loss_of(s(dtype=torch.float64 if s.pair.dtype == torch.float32 else torch.float32)).backward()


@another
def call_of_submodule(s: Step, k: int) -> None:
    name = s.pair.submodule(k, nn.Linear)
    if name is not None:
        x = torch.rand(4, s.model.get_submodule(name).in_features, dtype=s.pair.dtype)
        out = s.model.get_submodule(name)(x)
        s.keep("a submodule's result", out)
        out.sum().backward() if out.requires_grad else None


@another
def functional(s: Step, k: int) -> None:
    made = {n: (q.detach() * 1.125).requires_grad_() for n, q in s.model.named_parameters()}
    loss = loss_of(s(lambda *a, **kw: functional_call(s.model, made, a, kw)))
    loss.backward()
    s.keep("gradients of the parameters given", {n: q.grad for n, q in made.items()})


@another
def function_transform(s: Step, k: int) -> None:
    params = {n: q.detach() for n, q in s.model.named_parameters()}
    leaves, given = inputs(s.model, Sizes(), s.pair.dtype, s.pair.steps)

    def f(ps: dict[str, Tensor]) -> Tensor:
        return loss_of(functional_call(s.model, ps, (), given))

    s.keep("torch.func.grad", torch.func.grad(f)(params))


@another
def closed_over_loop(s: Step, k: int) -> None:
    """An ordinary loop of three steps with an optimizer."""
    optimizer = torch.optim.SGD(s.model.parameters(), lr=0.01, momentum=0.5)
    for _ in range(3):
        optimizer.zero_grad(set_to_none=k % 2 == 0)
        loss_of(s()).backward()
        optimizer.step()


# --- runs -------------------------------------------------------------------------------------------------------------


def replay(name: str, goal: dict[str, Any], actions: list[Action]) -> Pair:
    """Take a new pair through the actions.

    Raises
    ------
    Fault : the first difference, with the actions up to it as a script.
    """
    global SCALE
    if not gc.get_freeze_count():  # collections, of which every check makes two, then leave torch's own objects out
        gc.collect()
        gc.freeze()
    with warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(0)
            eager = MODELS[name]()
        pair = Pair(name, goal, [eager, copy.deepcopy(eager)], warned=warned)
        logger = logging.getLogger("rekindle")
        logger.addHandler(pair.lines)
        done: list[Action] = []
        try:
            if not plan_it(pair):
                raise Fault("was refused")
            pair.words_before = 0
            pair.step()
            for action, k in actions:
                done.append((action, k))
                with in_time():
                    ACTIONS[action](pair, k)
                    pair.step()
        except (Exception, Hang) as e:
            kind = e if isinstance(e, Fault) else f"raises {type(e).__name__}: {str(e).partition(chr(10))[0][:300]}"
            kind = f"takes more than {PATIENCE:.0f} s" if isinstance(e, Hang) else kind
            raise Fault(f"{kind}\nReplay: import twin; twin.replay({name!r}, {goal!r}, {done!r})") from e
        finally:
            logger.removeHandler(pair.lines)
            unpatch_classes(pair, 0)
            SCALE = 1.0
    return pair


def sequence(seed: int, most: int) -> tuple[str, dict[str, Any], list[Action]]:
    """The model, the goal and the actions of a seed."""
    r = random.Random(seed)
    name = list(MODELS)[seed % len(MODELS)]
    names = list(ACTIONS)
    return name, r.choice(GOALS), [(r.choice(names), r.randrange(60)) for _ in range(r.randint(3, 20))][:most]


def shrink(
    name: str, goal: dict[str, Any], actions: list[Action], seconds: float = 20
) -> tuple[list[Action], Fault | None]:
    """Fewer actions that still end in a fault, and that fault."""
    end = time.monotonic() + seconds
    last: Fault | None = None
    size = max(1, len(actions) // 2)
    while time.monotonic() < end:
        for i in range(0, len(actions), size):
            fewer = actions[:i] + actions[i + size :]
            try:
                replay(name, goal, fewer)
            except Fault as e:
                actions, last = fewer, e
                break
            if time.monotonic() > end:
                return actions, last
        else:
            if size == 1:
                break
            size //= 2
    return actions, last


def check(seed: int, most: int) -> None:
    """Take the pair of a seed through its actions, or through the first `most` of them.

    Raises
    ------
    AssertionError : with the fewest actions found that show the difference.
    """
    name, goal, actions = sequence(seed, most)
    try:
        replay(name, goal, actions)
    except Fault as e:
        fewer, last = shrink(name, goal, actions)
        found = f"seed {seed}: {last or e}\nFewest actions found: {fewer}\nAll of them: {actions}"
        raise AssertionError(found) from None


def main() -> None:
    """Each action alone, on each model."""
    import argparse

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--actions", default=",".join(ACTIONS))
    parser.add_argument("--numbers", default="0,1,2,3,4,5")
    parser.add_argument("--steps", type=int, default=0, help="ordinary steps more after the action")
    given = parser.parse_args()
    torch.set_num_threads(1)
    for action in given.actions.split(","):
        for name in given.models.split(","):
            seen: dict[str, int] = {}
            for k in map(int, given.numbers.split(",")):
                start = time.monotonic()
                try:
                    replay(name, GOALS[0], [(action, k)] + [("no_change", 0)] * given.steps)
                except Fault as e:
                    seen.setdefault(str(e).partition("\n")[0], k)
                if time.monotonic() - start > 10:
                    seen.setdefault(f"took {time.monotonic() - start:.0f} s", k)
            for what, k in seen.items():
                print(f"{action:26} {name:11} {k}  {what}", flush=True)


if __name__ == "__main__":
    main()

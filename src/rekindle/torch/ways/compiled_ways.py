"""Measures the ways to run a part through torch.compile: steps of the part by itself, on the device at hand.

Nothing is predicted: each way is a black box that takes seconds, holds bytes between forward and backward, and has a peak in
each. A way whose gradients are another part's rounding away from those of the part compiled as it is, is never offered.
"""

from __future__ import annotations

import copy
import functools
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ...compiling import IN_SLICES, Compiled, CompileOptions
from ...errors import TraceError
from ...parts.ways import Figures, Way, best
from ...printed import first_line
from ...saying.progress import Progress, announce
from ..compiled.stage import compiled_forward
from ..private import disable_autocast
from ..rewrite.closeness import difference, least_scale
from ..tensors import rng, tree
from .finding import Unit
from .trial_steps import TrialSteps

log = logging.getLogger("rekindle")
# Each way is timed so often, in turns, but no further round begins after so many seconds. Both are guesses.
TIMINGS, TIMINGS_MOST_S = 7, 3.0
# Differences are relative to the largest element of a tensor. A part is compiled at all if, compiled as it is, it is at most so
# far from eager, with half-precision numbers in it or without; guesses.
HALF_APART_MOST, EAGER_APART_MOST = 0.05, 1e-3
# A way is right if it is at most so far from the part compiled as it is, or twice as far as that is from eager. Steps with
# half-precision numbers that draw random numbers, which no eager step can be compared with, may be HALF_APART_MOST apart.
APART_MOST = 1e-5  # a guess
# The same of a loss in slices, each of which rounds its part of a half-precision gradient; a guess.
SLICED_HALF_APART_MOST = 0.01
Outcome = Sequence[torch.Tensor | None]  # results, buffers and gradients of a step
MIN_CUT, QUICK = Compiled(), ("min-cut", "inputs")


@dataclass(frozen=True)
class Measured:
    """The ways of a part. wrong : ways that are not offered, in words. eager_seconds : of its step without the compiler."""

    ways: Sequence[Way]
    wrong: Sequence[str]
    eager_seconds: float


def compiled_ways(
    unit: Unit, kind: str, device: torch.device, options: CompileOptions, saves: Sequence[str], progress: Progress
) -> Measured:
    """The ways of one part: compiled as it is first, then others that save fewer bytes; and as it runs without the compiler,
    unless it draws random numbers, of which compiled parts draw others. saves : the compiled ways that are tried.

    Raises
    ------
    Exception : torch.compile cannot compile the part; any of the compiler's own errors.
    """
    with _Trial(unit, kind, device, options).ready() as trial:
        return trial.measured(unit.path, [Compiled(x) for x in saves], progress)


def held_uncompiled(unit: Unit, device: torch.device) -> int:
    """Bytes that a part holds between forward and backward where it runs uncompiled."""
    with _Trial(unit, "", device, CompileOptions()).ready() as trial:
        return trial.sizes(None).held_bytes


class _Trial(TrialSteps):
    """Steps of a part that is compiled. kind : as `Kinds` has it."""

    def __init__(self, unit: Unit, kind: str, device: torch.device, options: CompileOptions):
        super().__init__(unit, device)
        self._kind, self._options = kind, options
        self._gradients: list[torch.Tensor] = []  # of the results, as they come from outside
        self._devices = sorted({"cpu", str(device)})
        self._random = {d: rng.state(d) for d in self._devices}

    def measured(self, path: str, tried: Sequence[Compiled], progress: Progress) -> Measured:
        """The ways among those that are tried."""
        eager = self._outcome(None)
        comparable = not self._drew() or self._options.draws_as_eager
        plain = self._compiled(MIN_CUT, path, progress)
        apart = _apart(plain, eager) if comparable else 0.0
        halves = self._has_halves()
        far = apart > (HALF_APART_MOST if halves else EAGER_APART_MOST)
        if far and not self._rounds(plain, eager, HALF_APART_MOST):
            raise TraceError(
                f"its compiled numbers are {apart:.1e} of their largest element away from the uncompiled ones"
            )
        most = max(APART_MOST, 2 * min(apart, HALF_APART_MOST), HALF_APART_MOST if not comparable and halves else 0.0)
        hows: list[Compiled | None] = [MIN_CUT, *([None] if comparable else [])]
        exact = {MIN_CUT: True, None: apart == 0.0}
        wrong = []
        drew = self._drew()
        for how in tried:
            if how == MIN_CUT or how.saves == "half" and drew:  # where it draws, "half" is min-cut
                continue
            try:
                ours = self._compiled(how, path, progress)
                off = _apart(ours, plain)
            except torch.OutOfMemoryError:
                raise
            except Exception as e:  # the compiler's own errors have no common class
                wrong.append(f'in its way "{how.saves}" ({type(e).__name__}: {first_line(e)[:120]})')
                continue
            rounds = SLICED_HALF_APART_MOST if how.saves in IN_SLICES and halves else 0.0
            if off > max(most, rounds) and not (comparable and self._rounds(ours, eager, SLICED_HALF_APART_MOST)):
                wrong.append(f'in its way "{how.saves}" (its numbers are {off:.1e} of their largest element away)')
            else:
                hows.append(how)
                exact[how] = off == 0.0
        announce(progress, f"measuring {path} in {len(hows)} ways")
        sizes = {how: self.sizes(how) for how in hows}
        timed = [*hows, *(() if comparable else [None])]
        runs = [functools.partial(self._run, self._forward(how)) for how in timed]
        seconds = dict(zip(timed, self.seconds(runs, TIMINGS, TIMINGS_MOST_S), strict=True))
        fastest = min(seconds[how] for how in hows)
        every = [
            Way(
                None,
                replace(sizes[how], extra=seconds[how] - fastest, plain=fastest),
                compiled=how,
                is_exact=exact[how],
            )
            for how in hows
        ]
        others = [w for w in best(every) if w.compiled != MIN_CUT]
        return Measured([every[0], *others], wrong, seconds[None])

    def _compiled(self, how: Compiled, path: str, progress: Progress) -> list[torch.Tensor | None]:
        announce(progress, f"compiling {path}: {how.saves}")
        return self._outcome(how)

    def _forward(self, how: Compiled | None) -> Callable[..., Any]:
        forward = compiled_forward(self.module, how, self._options, self._kind)
        forward.raises = True
        return forward

    def _run(self, forward: Callable[..., Any], between: Callable[[Any], None] | None = None) -> Any:
        """One step; gives the results."""
        result = forward(*self.args, **self.kwargs)
        trained = [t for t in tree.tensors_in(result) if t.requires_grad]
        if not self._gradients:
            states = {d: rng.state(d) for d in self._devices}
            self._gradients = [torch.randn_like(t) for t in trained]
            for d, before in states.items():
                rng.restore(before, d)
        if between is not None:
            between(result)
        torch.autograd.backward(trained, [g.to(t.dtype) for g, t in zip(self._gradients, trained, strict=True)])
        return result

    def _outcome(self, how: Compiled | None) -> list[torch.Tensor | None]:
        """Results, gradients and buffers of a step from the state at the start."""
        module = self.module
        for d in self._devices:
            rng.restore(self._random[d], d)
        self.clear()
        buffers = [b.clone() for b in module.buffers()]
        result = self._run(self._forward(how))
        found: list[torch.Tensor | None] = [
            *(t.detach().clone() for t in tree.tensors_in(result)),
            *(b.clone() for b in module.buffers()),
        ]
        found += [None if t.grad is None else t.grad.clone() for t in (*module.parameters(), *self.leaves)]
        with torch.no_grad():
            for b, old in zip(module.buffers(), buffers, strict=True):
                b.copy_(old)
        self.clear()
        return found

    def _rounds(self, ours: Outcome, eager: Outcome, most: float) -> bool:
        """Whether half precision explains compiled numbers: tensor by tensor they are at most `most`, or twice as far as
        eager's, from those of the same step in float32. False where that step cannot be run."""
        if not self._has_halves() or (exact := self._in_float32) is None or len(exact) != len(eager):
            return False
        least = least_scale(t for t in exact if t is not None)
        for a, b, right in zip(ours, eager, exact, strict=True):
            if a is not None and b is not None and right is not None:
                off, may = (difference(t.to(right.dtype), right, least) for t in (a, b))
                if off > max(most, 2 * may):
                    return False
        return True

    @functools.cached_property
    def _in_float32(self) -> Outcome | None:
        """The outcome of the step without the compiler, in float32; None: it cannot be run."""
        own, call = (self.module, self.twins, self.args, self.kwargs), self.given.call
        try:
            if any(map(_is_half, self.module.parameters())):
                self.module = copy.deepcopy(self.module).float()
            twins = [t.detach().float().requires_grad_(t.requires_grad) if _is_half(t) else t for t in self.twins]
            self.twins, (self.args, self.kwargs) = twins, call.form.arguments(tree.unflatten(twins, call.spec))
            with disable_autocast():
                return self._outcome(None)
        except Exception as e:  # a module that copies itself in its own way, or code that names a dtype
            log.debug("no step of %s in float32: %r", type(own[0]).__name__, e)
            return None
        finally:
            self.module, self.twins, self.args, self.kwargs = own

    def _drew(self) -> bool:
        return any(rng.state(d) != self._random[d] for d in self._devices)

    def _has_halves(self) -> bool:
        tensors = (*self.module.parameters(), *self.twins)
        return bool(self.given.casts) or any(map(_is_half, tensors))

    def sizes(self, how: Compiled | None) -> Figures:
        """Bytes that a step of the part takes in one way."""
        forward = self._forward(how)
        self.clear()
        return self.sizes_of(lambda between: self._run(forward, between))


def _is_half(t: torch.Tensor) -> bool:
    return t.is_floating_point() and t.element_size() < 4


def _apart(one: Outcome, other: Outcome) -> float:
    """The largest difference of two outcomes, relative to the largest element of its tensor."""
    least = least_scale(t for t in other if t is not None and t.is_floating_point())
    return max((difference(a, b, least) for a, b in zip(one, other, strict=True)), default=0.0)

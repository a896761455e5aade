"""One training step in progress: the gradients that its backward has got, and the stage that it comes to next."""

from __future__ import annotations

import functools
import itertools
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import fx

from ...errors import RekindleError
from ..private import backward_number, disable_autocast
from .results import is_looked_at, no_views
from .second import Second
from .shared_casts import CallInBlock

if TYPE_CHECKING:
    from .execute import Runner

GOES_ON = (
    "from which forward goes on, and the planned step never makes its whole gradient. Give loss='all' to the call that planned "
    "(rekindle.checkpoint, rekindle.trace, …); if no parameter leads to it, make it outside of forward and pass it in; or call "
    "rekindle.restore(model)"
)


@dataclass(eq=False)
class TrainingStep:
    """One training step in progress: a forward call and what its backward needs."""

    runner: Runner
    inputs: list[Any]
    second: Second
    rng: dict[int | str, Any] = field(default_factory=dict)
    generator: Iterator[None] | None = None
    out: list[Any] = field(default_factory=list)
    results: list[Any] = field(default_factory=list)  # of forward, until the nodes that own them are made
    given: list[Any] = field(default_factory=list)  # gradients that the generator takes as it goes on
    absent: frozenset[fx.Node] = frozenset()  # the `Runner.sources` that backward has not got
    left: dict[int, list[Any]] = field(default_factory=dict)  # stage -> gradients that the last backward did not take
    inside: int = -1  # number of the backward call that takes those: it begins at a stage
    at: int = 0  # the stage that the generator runs next
    begun: int = -1  # number of the backward call that runs
    trained: frozenset[int] = frozenset()  # ids of the tensors that gradients come to
    versions: dict[int, tuple[Callable[[], Any], int]] = field(default_factory=dict)  # of inputs, as forward left them
    inner: dict[int, Any] = field(default_factory=dict)  # results, weakly, from which forward goes on
    shared: CallInBlock | None = None  # its record in the autocast block; None: no block shares casts
    apart: bool = False  # backward leaves sums of gradients apart
    instead: frozenset[int] = frozenset()  # inputs in whose place another tensor gets the gradients of their casts
    again: int = -1  # number of the backward call whose gradients `second` makes
    differentiated: dict[int, list[Any]] = field(default_factory=dict)  # stage -> its gradients, if `second` made them
    carried: dict[int, Any] = field(default_factory=dict)  # input -> its gradient for a stage after the next cut
    parts: dict[int, list[Any]] = field(default_factory=dict)  # result -> parts of its gradient, not handed over yet

    def forward(self) -> tuple[list[Any], list[Any]]:
        inputs, self.inputs = self.inputs, []
        self.trained = frozenset([id(inputs[i]) for i in self.runner.trained])
        known = {id(t) for t in inputs}
        watched = {i: inputs[i] for i in self.runner.watched_inputs}
        with disable_autocast():
            results, saved = self.runner.program.forward(inputs, self.rng)
            if "away" in self.rng:
                self.rng["away"].settle()
        self.versions = {i: (weakref.ref(t), t._version) for i, t in watched.items() if not t.is_inference()}
        for i, t in enumerate(results):
            if id(t) in known:  # autograd would treat two results, or a result and a parameter, as one tensor
                results[i] = t.detach()
            known.add(id(t))
        if any(t._is_view() for t in results):
            results = no_views(results, [*inputs, *saved])
        self.inner = {i: weakref.ref(results[i]) for i in self.runner.lowered.captured.goes_on}
        return results, saved

    def check_versions(self, which: Iterable[int]) -> None:
        """Raise an error if one of these inputs was written to since forward."""
        for i in which:
            if (noted := self.versions.get(i)) and (t := noted[0]()) is not None and t._version != noted[1]:
                raise self.runner.written_to(i, t, noted[1])

    def check_results(self) -> None:
        """Raise an error if somebody looks at the gradient of a result of which this backward makes a part alone."""
        for i in self.runner.uncut:
            if is_looked_at(self.inner[i]):
                place = self.runner.lowered.captured.ignored_outputs.get(i, f"result {i}")
                raise RekindleError(f"a hook or retain_grad() is on {place}, {GOES_ON}")

    def start(self, saved: list[Any], retain: bool) -> None:
        """Begin a backward, without gradients so far. An earlier backward that was left unfinished (autograd.grad on a subset)
        is dropped. retain : another backward may follow."""
        self.runner.waiting.discard(self)
        for known in (self.out, self.differentiated, self.left):
            known.clear()
        apart = _given_before(self.trained) and bool(self.runner.program.parts)
        apart = apart or any(i in self.runner.added_inside or self.runner.casts[i].adds for i in self.instead)
        if self.shared is not None:
            self.shared.begun, apart = backward_number(), apart or bool(self.shared.left)
        self.apart, self.at, self.absent, self.begun = apart, 0, frozenset(), backward_number()
        self.given = []  # a list of its own, which an unfinished backward does not refer to
        self.generator = self.runner.program.backward(saved, self.given, self.rng, self.out, retain, apart)

    def take(self, k: int, gradients: list[Any], start: Callable[[], None]) -> None:
        """Take the gradients that came back to boundary k. Where backward begins, `start` is called; the stages that stand
        before the boundary then run on zeros, and nobody gets what they hand over."""
        known = self.runner.boundaries
        if k == 0 or not self.is_at(known[k].stage) or backward_number() not in (self.begun, self.inside):
            start()
            for before, b in itertools.pairwise(known[: k + 1]):
                self._give(before.sources, [None] * len(before.sources))
                while self.at < b.stage:
                    self._run()
                    self.out.clear()
        self._give(known[k].sources, gradients)

    def is_at(self, j: int) -> bool:
        """Whether stage j is the next one of a backward that has begun."""
        return self.generator is not None and self.at == j

    def _give(self, sources: Collection[fx.Node], gradients: list[Any]) -> None:
        self.absent |= {n for n, g in zip(sources, gradients, strict=True) if g is None}
        for n, g in zip(sources, gradients, strict=True):
            t = n.meta["val"]  # of a result on which the loss does not depend, the gradient is zero
            self.given.append(torch.zeros(t.shape, dtype=t.dtype, device=t.device) if g is None else g)

    def start_again(
        self, k: int, tangents: list[Any], stages: Iterable[int], anchor: torch.Tensor, whole: bool
    ) -> bool:
        """Take the gradients that came back to boundary k by the module's own forward; False if memory does not suffice.

        stages : after the boundary that this backward reaches; gradients of others would live on. whole : it takes all their
        gradients, second derivatives too."""
        runner, number = self.runner, backward_number()
        runner.waiting.discard(self)
        if self.shared is not None:
            self.shared.begun = number
        if self.again != number:
            self.again, self.differentiated, self.carried, self.parts = number, {}, {}, {}
        own, later = runner.boundaries[k], runner.boundaries[k + 1 :]
        reached = {j: runner.stage_inputs[j] for j in stages}
        now = {j: places for j, places in reached.items() if not later or j < later[0].stage}
        given = {own.outputs[at]: g for at, g in zip(own.sources.values(), tangents, strict=True)}
        wanted = {i for places in reached.values() for i in places}
        cuts = [b.outputs[0] for b in later]
        if whole and not any(map(is_looked_at, self.inner.values())):  # nobody sees what comes to results
            cuts, wanted = [], {i for i in wanted if i >= 0}
        last = len(now) == len(reached)
        found = self.second.gradients(given, wanted, runner.direct(k), cuts, self.carried, anchor, last)
        if found is None:
            self.again = -1
            return False
        for i in [i for i in found if i < 0]:
            self.parts[i] = self.parts.get(i, []) + (found.pop(i) or [])
        # One that stands in several places gets its whole gradient in one of them, in the earliest unless one is a cast's.
        casts = [(j, at) for j in now for at, _ in runner.casts_of_stage[j]] if self.shared else []
        made = {(j, at): found.pop(now[j][at], None) for j, at in casts}
        for j, places in now.items():
            self.differentiated[j] = [
                self._next_part(i, (j, at)) if i < 0
                else made[j, at] if (j, at) in made else found.pop(i, None)
                for at, i in enumerate(places)
            ]  # fmt: skip
        self.carried = {i: g for i, g in found.items() if g is not None}
        return True

    def _next_part(self, i: int, at: tuple[int, int]) -> Any:
        """The next part of the gradient of a result; where the last one is asked for, the sum of the rest."""
        parts = self.parts.get(i, [])
        taken = parts[:] if at == self.runner.last_place[i] else parts[:1]
        del parts[: len(taken)]
        return functools.reduce(torch.add, taken) if taken else None

    def stage(self, j: int) -> list[Any]:
        """Run stage j and take its gradients."""
        if j in self.differentiated:
            return self._handed_over(j, self.differentiated.pop(j))
        if not self.is_at(j):
            if j not in self.left:
                raise RekindleError(
                    "a backward begins at a node inside a planned step, and the backward before it kept nothing there. Give "
                    "that one retain_graph=True, or call rekindle.restore(model) for such steps"
                )
            self.inside = backward_number()
            return self.left[j]
        self._run()
        gradients = self.out[:]
        self.out.clear()
        for k in self.runner.without(j, self.absent) if self.absent else ():
            gradients[k] = None
        return self._handed_over(j, self.runner.in_parts(j, gradients))

    def _run(self) -> None:
        """Run the next stage, which puts its gradients into `out`."""
        assert self.generator is not None
        try:
            self.check_versions(self.runner.read_by_stage[self.at])
            with disable_autocast(), self.runner.watched():
                next(self.generator)
        except BaseException:
            self.generator = None  # its tensors must not outlive the error
            self.out.clear()
            raise
        self.at += 1
        if self.at == len(self.runner.program.stages):
            self.generator.close()  # type: ignore[attr-defined]
            self.generator = None

    def _handed_over(self, j: int, gradients: list[Any]) -> list[Any]:
        """The gradients of stage j, with those that it hands over for casts where eager has them."""
        shared = self.shared
        if shared is None or not (self.apart or self.instead):
            return gradients
        for at, i in self.runner.casts_of_stage[j]:
            g, leaf, cast = gradients[at], shared.leaves.get(i, 0), self.runner.casts[i]
            if i in self.instead or leaf in shared.left or isinstance(g, list):
                low = [x.to(cast.dtype) for x in (g if isinstance(g, list) else [g]) if x is not None]
                low = shared.with_left(leaf, low)
                if i in self.instead:
                    gradients[at], *more = [*low, *[None] * (cast.uses - len(low))]  # type: ignore[misc]
                    gradients += more
                else:
                    gradients[at] = functools.reduce(torch.add, low).float() if low else None
        return gradients


# The engine's number of a backward call -> ids of the tensors to which that call has brought gradients so far.
_given: dict[int, frozenset[int]] = {}
_BACKWARDS_MOST = 8  # backward calls that run at the same time: in several threads, or one inside another


def _given_before(tensors: frozenset[int]) -> bool:
    """Whether the running backward call has already brought gradients to one of the tensors."""
    number = backward_number()
    before = _given.pop(number, frozenset())
    _given[number] = before | tensors if before else tensors
    while len(_given) > _BACKWARDS_MOST:
        _given.pop(next(iter(_given)), None)
    return not before.isdisjoint(tensors)

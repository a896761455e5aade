"""The comparison of two measured steps, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace

import torch

from ..rewrite.closeness import NOTHING, Loose, difference, least_scale
from ..trace import Trace
from .as_before import same
from .measured_step import Outcome
from .variation import allowed

KINDS = ("loss", "gradients", "buffers", "rng")


@dataclass
class Compared:
    """The comparison of a planned step with a plain one.

    equal : bitwise equality of each kind, None if it could not be compared. differences : in words. close, varying : as `Check`
    has them. wrong : kind -> names of the tensors that differ by more than they may.
    """

    equal: dict[str, bool | None]
    differences: list[str] = field(default_factory=list)
    close: dict[str, tuple[float, str]] = field(default_factory=dict)
    varying: tuple[str, ...] = ()
    wrong: dict[str, list[str]] = field(default_factory=dict)

    @property
    def only_gradients(self) -> bool:
        """Whether gradients differ by more than they may, and nothing else does."""
        return bool(self.wrong.get("gradients")) and len(self.differences) == 1

    def and_also(self, other: Compared, how: str) -> Compared:
        """This comparison and another one of the same steps. how : words before the differences of the other one."""
        both = {k: self.equal[k] and other.equal[k] for k in self.equal}
        varying = tuple(dict.fromkeys((*self.varying, *other.varying)))
        close = {} if other.differences else self.close
        return Compared(both, self.differences + [how + x for x in other.differences], close, varying)


def compare(
    ours: Outcome, theirs: Outcome | None, fake: bool, may: Loose = NOTHING, vary: Mapping[str, float] | None = None
) -> Compared:
    """The comparison of a planned step, `ours`, with a plain one; None: it did not fit.

    may : what may differ by rounding; that it does is no difference. vary : as `variation.allowed` gives it.
    """
    found = Compared(dict.fromkeys(KINDS))
    if theirs is None or fake:
        return found
    vary = vary or {}
    gradients = may.parameters | frozenset(theirs.of_inputs if may.inputs else ())
    kinds: list[tuple[str, str, _Tensors, _Tensors, frozenset[str]]] = [
        ("loss", "losses", {"": ours.loss}, {"": theirs.loss}, frozenset([""] if may.results else [])),
        ("gradients", "gradients", ours.gradients, theirs.gradients, gradients),
        ("buffers", "tensors that forward writes", ours.written, theirs.written, may.written),
    ]
    for kind, what, a, b, apart in kinds:
        known = list(dict.fromkeys([*b, *a]))
        wrong = [k for k in known if not same(a.get(k), b.get(k))]
        found.equal[kind] = not wrong
        most = vary if kind == "gradients" else {}
        measured = [k for k in wrong if k in apart or k in most]
        least = least_scale(b.values()) if kind == "gradients" and measured else 0.0
        off = {k: difference(a.get(k), b.get(k), least) for k in measured}
        close = {k: x for k, x in off.items() if k in apart and x <= may.most}
        varying = [k for k, x in off.items() if k not in close and x <= most.get(k, 0.0)]
        wrong = [k for k in wrong if k not in close and k not in varying]
        found.wrong[kind] = wrong
        if kind == "gradients":
            found.varying = tuple(varying)
        if wrong and kind == "loss":
            found.differences.append(f"loss is {ours.loss.item()!r} planned and {theirs.loss.item()!r} plain")
        elif wrong:
            found.differences.append(
                f"{len(wrong)} of {len(known)} {what} differ, first {wrong[0]}{_by(off, wrong[0])}"
            )
        elif close:
            found.close[kind] = max((x, k) for k, x in close.items())
    found.equal["rng"] = all(same(a, b) for a, b in zip(ours.rng, theirs.rng, strict=True))
    found.differences += [] if found.equal["rng"] else ["the RNG state after the step differs"]
    return found


def unless_plain_steps_vary(
    found: Compared, ours: Outcome, theirs: Outcome, may: Loose, step: Trace, again: Callable[[], Outcome]
) -> Compared:
    """The comparison, in which gradients may be as far apart as the gradients of two plain steps are by fused attention.

    found : the comparison as `compare` gave it; it stands unless gradients alone differ. step : the planned one. again : runs
    one more plain step.
    """
    if not found.only_gradients:
        return found
    vary = allowed(step, theirs.gradients, found.wrong["gradients"], lambda: again().gradients)
    return compare(ours, theirs, False, may, vary)


def without_others_draws(found: Compared, steps: Iterable[tuple[Outcome, Callable[[], Outcome]]]) -> Compared:
    """The comparison; random states alone that differ are no difference where another thread draws from torch's generator.

    steps : the outcome of a step, and the function that runs it again: then it leaves another random state than before.
    """
    if found.differences and found.equal["rng"] is False and len(found.differences) == 1:
        for one, again in steps:
            if not all(map(same, one.rng, again().rng)):
                return replace(found, equal=found.equal | {"rng": None}, differences=[])
    return found


_Tensors = Mapping[str, torch.Tensor | None]


def _by(off: dict[str, float], name: str) -> str:
    """How far a tensor that may differ by rounding differs."""
    return f" by {off[name]:.1e} of its largest element" if name in off else ""

"""The comparison of two measured steps, tensor by tensor."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from math import inf

import torch

from ..rewrite.closeness import NOTHING, Loose, difference, least_scale
from ..run import variation
from ..run.as_before import same
from ..run.measured_step import Outcome

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

    def and_also(self, other: Compared, how: str) -> Compared:
        """This comparison and another one of the same steps. how : words before the differences of the other one."""
        both = {k: self.equal[k] and other.equal[k] for k in self.equal}
        close = {k: max(c for c in (self.close.get(k), other.close.get(k)) if c) for k in {**self.close, **other.close}}
        varying = tuple(dict.fromkeys((*self.varying, *other.varying)))
        return Compared(both, self.differences + [how + x for x in other.differences], close, varying)


def variation_of(theirs: Outcome, found: Compared, again: Callable[[], Outcome]) -> dict[str, dict[str, float]]:
    """Kind -> name -> how far a tensor that differs may be from the plain step's, since plain steps vary too."""
    more = variation.Repeated(again)
    return {
        kind: variation.allowed(_tensors(theirs)[kind], wrong, (_tensors(x)[kind] for x in more))
        for kind, wrong in found.wrong.items()
    }


def _tensors(x: Outcome) -> dict[str, dict[str, torch.Tensor | None]]:
    """The tensors of an outcome that are compared, by kind and name."""
    return {"loss": {"": x.loss}, "gradients": dict(x.gradients), "buffers": dict(x.written)}


def compare(
    ours: Outcome, theirs: Outcome | None, fake: bool, may: Loose = NOTHING,
    varies: Mapping[str, Mapping[str, float]] | None = None,
) -> Compared:  # fmt: skip
    """The comparison of a planned step, `ours`, with a plain one; None: it did not fit.

    may : what may differ by rounding; that it does is no difference. varies : as `variation_of` gives it.
    """
    found = Compared(dict.fromkeys(KINDS))
    if theirs is None or fake:
        return found
    gradients = may.parameters | frozenset(theirs.of_inputs if may.inputs else ())
    kinds = [
        ("loss", "losses", frozenset([""] if may.results else [])),
        ("gradients", "gradients", gradients),
        ("buffers", "tensors that forward writes", may.written),
    ]
    varying: list[str] = []
    for kind, what, apart in kinds:
        a, b = _tensors(ours)[kind], _tensors(theirs)[kind]
        vary = (varies or {}).get(kind, {})
        known = list(dict.fromkeys([*b, *a]))
        wrong = [k for k in known if not same(a.get(k), b.get(k))]
        found.equal[kind] = not wrong
        loose_ones = apart.intersection(wrong) | vary.keys()
        least = least_scale(b.values()) if kind == "gradients" and loose_ones else 0.0
        off = {k: _apart(a.get(k), b.get(k), least) for k in wrong if k in loose_ones}
        most = {k: max(may.most if k in apart else 0.0, vary.get(k, 0.0)) for k in off}
        wrong = [k for k in wrong if off.get(k, inf) > most.get(k, 0.0)]
        varying += [k or "loss" for k in off if k in vary]
        if wrong:
            found.wrong[kind] = wrong
        if wrong and kind == "loss":
            found.differences.append(f"loss is {ours.loss.item()!r} planned and {theirs.loss.item()!r} plain")
        elif wrong:
            found.differences.append(
                f"{len(wrong)} of {len(known)} {what} differ, first {wrong[0]}{_by(off, wrong[0])}"
            )
        elif off:
            found.close[kind] = max((x, k) for k, x in off.items())
    found.varying = tuple(varying)
    found.equal["rng"] = all(same(a, b) for a, b in zip(ours.rng, theirs.rng, strict=True))
    found.differences += [] if found.equal["rng"] else ["the RNG state after the step differs"]
    return found


def _apart(one: torch.Tensor | None, other: torch.Tensor | None, least: float) -> float:
    return inf if one is None or other is None else difference(one, other, least)


def _by(off: dict[str, float], name: str) -> str:
    """How far a tensor that may differ by rounding differs."""
    return f" by {off[name]:.1e} of its largest element" if name in off else ""

"""Costs of calls that were not measured, or not steadily, from those that were: a roofline fitted to each kind of operator.

A kind is an operator; where none of its calls was timed, the operator's class (`op_class`); else all operators.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .cache import Measurement, op_class, op_of
from .operator_calls import kind_of

# When a fit is believed. The values are guesses.
_LINE_LEAST_CALLS = 4  # an operator with fewer timed sizes gets one scale and no launch time of its own
_LINE_GAIN_RATIO = 0.8  # the line must miss held-out calls by less than this share of the error of one scale
_MISFIT_LEAST = 0.1  # in natural logarithms: a fit is never believed to be closer
_MISFIT_ALONE = 0.7  # the error assumed of a scale that a class of operators, or too few calls of one operator, gave


@dataclass(frozen=True)
class Fit:
    """Seconds of a call = launch_s + scale × its roofline. misfit : typical error, in natural logarithms."""

    launch_s: float
    scale: float
    misfit: float

    def __call__(self, roofline: float) -> float:
        return self.launch_s + self.scale * roofline


class Fits:
    """Predictions from the measurements of calls by key. The same measurements give the same predictions, to the bit."""

    def __init__(self, known: Mapping[str, Measurement]):
        timed: dict[str, list[tuple[float, float]]] = {}
        self._sized: dict[str, list[tuple[int, int, str]]] = {}  # (bytes moved, workspace, key) by operator
        for key in sorted(known):
            m, op = known[key], op_of(key)
            for kind in (op, _class(op), ""):
                if m.seconds is not None and m.seconds > 0 and m.roofline > 0:
                    timed.setdefault(kind, []).append((m.roofline, m.seconds))
            if m.workspace is not None and m.moved > 0:
                self._sized.setdefault(op, []).append((m.moved, m.workspace, key))
        self._fits = {kind: fitted(samples, alone=kind == "" or kind[0] == "<") for kind, samples in timed.items()}
        self._calls = {kind: len(samples) for kind, samples in timed.items()}

    def predicted(self, op: str, roofline: float) -> float:
        """Seconds of a call of `op`; its roofline where nothing was timed."""
        fit = next((self._fits[kind] for kind in (op, _class(op), "") if kind in self._fits), None)
        return roofline if fit is None else fit(roofline)

    def smoothed(self, op: str, m: Measurement) -> float:
        """Seconds of a timed call, less what is likely noise.

        A busy machine makes runs slower and never quicker. A timing above the prediction is therefore moved towards it, the
        further, the less its rounds agree and the better the fit; a timing below the prediction stays.
        """
        assert m.seconds is not None
        # The only timed call of its operator must not confirm itself.
        kind = next((k for k in (op, _class(op), "") if self._calls.get(k, 0) > 1), None)
        if kind is None:
            return m.seconds
        fit, noise = self._fits[kind], math.log1p(m.spread)
        predicted = fit(m.roofline)
        if not noise or predicted >= m.seconds:
            return m.seconds
        own = fit.misfit**2 / (fit.misfit**2 + noise**2)
        return predicted * (m.seconds / predicted) ** own

    def workspace(self, key: str, moved: int) -> int:
        """Workspace of a call that moves so many bytes, from the two measured calls of its kind (`kind_of`) that are nearest in
        size; 0 where there is none.

        The larger of their shares counts: a peak that was predicted too low breaks a budget. A call takes no more than those
        of its kind take that move as many bytes.
        """
        kind = kind_of(key)
        known = [(size, held) for size, held, other in self._sized.get(op_of(key), ()) if kind_of(other) == kind]
        if not known or moved <= 0:
            return 0
        near = sorted(known, key=lambda c: (abs(math.log(c[0] / moved)), c))[:2]
        guess = math.ceil(max(held / size for size, held in near) * moved - 1e-6)
        return min(guess, max(held for _, held in known)) if moved <= max(known)[0] else guess


def _class(op: str) -> str:
    return f"<{op_class(op)}>"


def fitted(samples: list[tuple[float, float]], alone: bool = False) -> Fit:
    """The fit to (roofline, seconds) of timed calls: the median ratio, or a line where it predicts held-out calls better.

    alone : the calls are of several operators, so that the fit says little about one of them.
    """
    ratios = [seconds / roofline for roofline, seconds in samples]
    scale = statistics.median(ratios)
    error = statistics.median(abs(math.log(r / scale)) for r in ratios)
    plain = Fit(0.0, scale, max(_MISFIT_ALONE if alone or len(samples) < 3 else _MISFIT_LEAST, error))
    if alone or len({roofline for roofline, _ in samples}) < _LINE_LEAST_CALLS:
        return plain
    by_scale = statistics.median(
        abs(math.log(r / statistics.median(ratios[:i] + ratios[i + 1 :]))) for i, r in enumerate(ratios)
    )
    x, y = np.array(samples).T
    left_out = _lines(x, y, held_out=True)
    if left_out is None:
        return plain
    by_line = float(np.median(np.abs(np.log((left_out[0] + left_out[1] * x) / y))))
    if by_line >= _LINE_GAIN_RATIO * by_scale:
        return plain
    line = _lines(x, y, held_out=False)
    if line is None:
        return plain
    return Fit(float(line[0][0]), float(line[1][0]), max(_MISFIT_LEAST, by_line))


def _lines(x: np.ndarray, y: np.ndarray, *, held_out: bool) -> tuple[np.ndarray, np.ndarray] | None:
    """(launch, slope) of the least relative errors, Σ ((launch + slope·x) / y − 1)²; None if one is not positive.

    held_out : one line for each call, fitted without it. A run that was held up has a large y, and so little weight.
    """
    moments = np.array([1 / y**2, x / y**2, (x / y) ** 2, 1 / y, x / y])
    total = moments.sum(1, keepdims=True)
    a, b, c, d, e = total - moments if held_out else total
    det = a * c - b * b
    if not (det > 1e-9 * a * c).all():
        return None
    launch, slope = (d * c - e * b) / det, (a * e - b * d) / det
    return (launch, slope) if (launch > 0).all() and (slope > 0).all() else None

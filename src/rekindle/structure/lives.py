"""The stages of a chain that make and read each value, and sums of bytes over them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np


class Roles(NamedTuple):
    """Some values as one stage of a chain sees them; each bool [values].

    own : made by the forward of the stage. own_gradient : made by its backward. later : made by later stages.
    read : backward reads it, or it must be there at the end. entering : in the input of the stage.
    passed_on : own, and in the input of the next stage. saved : passed on and read, so held in any case.
    unread : in the input of the stage, and read by no backward. passing : unread, and in the input of the next stage.
    ending : in the input of the stage, and read last by its backward. waiting : made later, for the backward of this stage or
        earlier ones. behind : there when the backward of the stage begins. left : needed after that backward.
    """

    own: np.ndarray
    own_gradient: np.ndarray
    later: np.ndarray
    read: np.ndarray
    entering: np.ndarray
    passed_on: np.ndarray
    saved: np.ndarray
    unread: np.ndarray
    passing: np.ndarray
    ending: np.ndarray
    waiting: np.ndarray
    behind: np.ndarray
    left: np.ndarray


@dataclass(frozen=True)
class Lives:
    """The values of a chain of n stages; arrays are [values].

    made, last : the stage whose forward makes the value (-1: none) and the last whose forward reads it.
    group : the stage whose backward makes it (-1: none).
    used : the earliest stage whose backward reads it (n: none), -1 where it must be there at the end.
    size : bytes, 0 for values that are held during the step or by the caller.
    kept : bool; whether it stays until the backward of its stage whatever the plan is; then its size is 0 too.

    A value is in the inputs of the stages behind `made` up to `last`.
    """

    n: int
    made: np.ndarray
    last: np.ndarray
    group: np.ndarray
    used: np.ndarray
    size: np.ndarray
    kept: np.ndarray

    def roles(self, values: np.ndarray, stage: int) -> Roles:
        """Some values (ids) as a stage sees them."""
        made, last, group, used = (x[values] for x in (self.made, self.last, self.group, self.used))
        own, own_gradient, later = made == stage, group == stage, (made > stage) | (group > stage)
        read, entering = used < self.n, (made < stage) & (made >= 0) & (last >= stage)
        passed_on, unread, waiting = own & (last > stage), entering & ~read, later & (used <= stage)
        return Roles(
            own, own_gradient, later, read, entering, passed_on, passed_on & read, unread, unread & (last > stage),
            entering & (used == stage), waiting, waiting | own_gradient, (own | own_gradient | later) & (used < stage),
        )  # fmt: skip

    @property
    def read_back(self) -> np.ndarray:
        """bool [values]: whether backward reads it, or it must be there at the end."""
        return self.used < self.n

    @cached_property
    def enters(self) -> np.ndarray:
        """bool [values]: whether it is in the input of a stage."""
        return (self.made >= 0) & (self.last > self.made)

    @cached_property
    def read(self) -> np.ndarray:
        """int64 [n]: the part of the input of each stage that backward reads."""
        return self._between(self.enters & self.read_back, self.made + 1, self.last)

    @cached_property
    def unread(self) -> np.ndarray:
        """int64 [n]: the part of the input of each stage that backward does not read."""
        return self._between(self.enters & ~self.read_back, self.made + 1, self.last)

    @cached_property
    def begun(self) -> np.ndarray:
        """int64 [n]: the part of the input of each stage that is not in the input of the one before."""
        first = self.made[self.enters] + 1
        return np.bincount(first, self.size[self.enters], self.n).astype(np.int64)

    @cached_property
    def idle(self) -> np.ndarray:
        """int64 [n]: bytes that later stages read forward and none reads backward, and that are there when the stage runs."""
        return self._between(self.enters & ~self.read_back, self.made + 1, self.last - 1)

    @cached_property
    def gradient(self) -> np.ndarray:
        """int64 [n]: bytes that wait for the backward of stages up to this one, once the backward of later ones has run."""
        return self._between(self._comes & self.read_back, self.used, self._origin - 1)

    @cached_property
    def waiting(self) -> np.ndarray:
        """int64 [n]: bytes that wait for the backward of stages before this one, once the backward of later ones has run."""
        return self._between(self._comes & self.read_back, self.used + 1, self._origin - 1)

    @property
    def single(self) -> bool:
        """Whether every value that passes from a stage to a later one is read by the next stage alone."""
        return not np.any(self.size[self.enters & (self.last > self.made + 1)])

    def entering(self) -> np.ndarray:
        """int64 [n, n]; [i, j], i < j: bytes of the input of stage j that are not in the input of stage i."""
        return self._spread(self.enters, np.zeros(len(self.size), np.bool_))

    def hold(self) -> np.ndarray:
        """int64 [n, n]; as `Chain.hold`."""
        return self._spread(self.enters & self.read_back, self.enters & ~self.read_back)

    @property
    def _origin(self) -> np.ndarray:
        return np.maximum(self.made, self.group)

    @property
    def _comes(self) -> np.ndarray:
        return self._origin > 0

    def _between(self, which: np.ndarray, first: np.ndarray, last: np.ndarray) -> np.ndarray:
        """int64 [n]: per stage the bytes of the values `which` for which it lies between stages `first` and `last`."""
        first, last = np.maximum(first, 0), np.minimum(last, self.n - 1)
        ids = np.flatnonzero(which & (first <= last))
        steps = np.zeros(self.n + 1, np.int64)
        np.add.at(steps, first[ids], self.size[ids])
        np.add.at(steps, last[ids] + 1, -self.size[ids])
        return np.cumsum(steps)[:-1]

    def _spread(self, begun: np.ndarray, ended: np.ndarray) -> np.ndarray:
        """int64 [n, n]; [i, j]: bytes of the values `begun` that are in the input of j and not of i, and of the values
        `ended` that are in the input of i and not of j. Differences along both axes are summed: O(values + n^2)."""
        steps = np.zeros((self.n + 1, self.n + 1), np.int64)
        for v in np.flatnonzero(begun).tolist():
            size, begin, end = self.size[v], self.made[v] + 1, self.last[v] + 1
            steps[0, begin] += size
            steps[0, end] -= size
            steps[begin, begin] -= size
            steps[begin, end] += size
        for v in np.flatnonzero(ended).tolist():
            size, begin, end = self.size[v], self.made[v] + 1, self.last[v] + 1
            steps[begin, end] += size
            steps[end, end] -= size
        return np.cumsum(np.cumsum(steps, 0), 1)[:-1, :-1]

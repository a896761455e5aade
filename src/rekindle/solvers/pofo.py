"""Rematerialization of a chain together with copies to the host.

Beaumont, Eyraud-Dubois, Shilova, Efficient Combination of Rematerialization and Offloading for Training DNNs, NeurIPS 2021.

Problem: a chain of stages that differ, and a link over which values are copied to the host and back while ops run. Least time
within a memory. The first forward saves a stage whole or passes some for their outputs alone; each input that stays from
forward to backward is kept on the device or copied. Passed stages run again as in `rotor`, without copies.

Optimality: for the time of its fluid model (`kernels.pofo`), among schedules in which only what the first forward keeps is
copied, once and as a whole, with memory counted in slots. In the model each byte is free as soon as it has left; a value is
freed once all of it has. So a plan may wait longer than its model says. `structure.copying` puts the copies in: first of the
values that the model copies, then of others where these do not suffice. The model spreads the seconds that a copy takes beside
its bytes over the bytes of all values.

It goes beyond the paper in one thing: the last stages, from any one on, may run as in `rotor` while copies go on. So the model
is never slower than `rotor` in the same slots.

Without a link in the problem no copies are allowed, and the schedules are those of `rotor`.

Complexity: O(n^2 S^3) for n stages and S slots, O(n S^3) memory. A chain of more than `MOST_STAGES` stages is merged to that
many first.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..kernels import pofo as kernel
from ..kernels.arrays import RUN
from ..kernels.rotor import Stages
from ..model.graph import Link
from ..model.judge import simulate
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..saying.shares import EPS
from ..structure.chain import BACKWARD, FORGET, KEEP_ALL, KEEP_INPUT, Chain, Operation, chain_of
from ..structure.copying import Copying
from .rotor import Curve, rotor, unit_of

# Guesses: the table takes about a second.
MOST_STAGES = 40  # a longer chain is merged to that many
# Of memory, by effort; the time grows with their cube. On 12 chains the mean extra time was 4.13 % with 20 slots in 0.2 s, and
# 3.98 % with 40 in 1.3 s.
SLOTS = {"quick": 12, "normal": 20, "thorough": 40}
NEAR = np.linspace(0.8, 1.1, 13)  # memories that are tried, as shares of the one aimed at: the model is a fluid


@register(
    "pofo",
    graphs="chain",
    objective="least time within a memory, of a chain of stages that differ, with copies to the host where they are allowed",
    optimal="for the time of its fluid model, among schedules that copy only what the first forward keeps, up to memory slots",
    complexity="O(n^2 S^3) for S memory slots",
    citation="Beaumont, Eyraud-Dubois, Shilova, Efficient Combination of Rematerialization and Offloading for Training "
    "DNNs, NeurIPS 2021",
    copies=True,
)
def pofo(problem: Problem) -> Iterator[Schedule]:
    """Checkpointing of a chain together with copies to the host by dynamic programming; `rotor` where none are allowed."""
    for s in rotor(problem):
        yield Schedule.from_array(s.array, s.graph_hash, "pofo")
    chain = chain_of(problem.graph, MOST_STAGES)
    if chain is None or problem.link is None or problem.whole or problem.time_left <= 0:
        return
    fluid = Fluid(chain, problem.weights, problem.link, SLOTS[problem.effort])
    top = _aim(problem, fluid)
    if top is None:
        return
    fluid.aim(int(NEAR[-1] * top))
    for slots in dict.fromkeys(fluid.slots(int(near * top)) for near in NEAR):
        if slots < 0 or not np.isfinite(fluid.times[slots]) or problem.time_left <= 0:
            continue
        yield from _copied(problem, *fluid.runs(slots), fluid.bytes(slots) if problem.room is None else problem.room)


def _aim(problem: Problem, fluid: Fluid) -> int | None:
    """Bytes that the goal allows, or least bytes that its overhead allows, in the model; None: none do."""
    if problem.room is not None:
        return problem.room
    fluid.aim(fluid.curve.whole)
    share = np.inf if problem.max_overhead is None else problem.max_overhead + EPS
    enough = np.flatnonzero(fluid.times <= problem.base_cost * (1 + share))
    return fluid.bytes(int(enough[0])) if len(enough) else None


def _copied(problem: Problem, runs: list[list[int]], leaving: np.ndarray, room: int) -> Iterator[Schedule]:
    """Schedules of the runs with copies within `room` bytes beside the resident ones. leaving : bool [values]; copied first."""
    graph = problem.graph
    for ids in runs:
        plain = Schedule.from_runs(graph, ids, "pofo")
        memory = simulate(graph, plain).memory[plain.array[:, 0] == RUN]
        found = Copying(graph, plain, memory, leaving).within(graph.with_resident(room), np.inf)
        if found is not None:
            yield found


class Fluid:
    """The least time for every memory up to `top` bytes (beside what is resident), in the model of `kernels.pofo`.

    most : slots of memory.
    times : float64 [slots + 1]; the time in each number of slots, infinite where that is too little.
    """

    def __init__(self, chain: Chain, weights: np.ndarray, link: Link, most: int):
        self.chain, self.curve, self.most = chain, Curve(chain, weights), most
        sizes = chain.lives.size[chain.lives.read_back & (chain.lives.size > 0)]
        # The seconds that a copy takes beside its bytes, for each of them: the model has no single copies.
        beside = link.copy_s / max(1.0, float(sizes.mean())) if len(sizes) else 0.0
        self.rates = 1 / (1 / link.out_bytes_per_s + beside), 1 / (1 / link.in_bytes_per_s + beside)

    def aim(self, top: int) -> None:
        """Find the times, with the slots spread over `top` bytes."""
        chain, lives = self.chain, self.chain.lives
        self.curve.aim(top)
        saved = np.append(0, chain.saved[:-1])
        self.unit = unit_of(max(1, top - chain.held), self.most, np.concatenate([saved, lives.read]))
        self.model = kernel.Model(
            Stages(*(x[0] for x in self.curve.levels)), self.curve.tables[0], float(self.curve.unit),
            np.array([lives.read, saved], np.float64), lives.unread.astype(np.float64), float(self.unit), self.most,
            *self.rates,
        )  # fmt: skip
        self.values = kernel.solve(self.model)
        self.times = self.curve.once + self.values[0, 0, ::-1, 0, 0]

    def bytes(self, slots: int) -> int:
        """The memory in so many slots."""
        return slots * self.unit + self.chain.held

    def slots(self, memory: int) -> int:
        """The slots in so much memory; negative where it is less than what is held."""
        return min(self.most, (memory - self.chain.held) // self.unit)

    def runs(self, slots: int) -> tuple[list[list[int]], np.ndarray]:
        """(sequences of runs of least time in so many slots, bool [values]: those that are copied to the host)."""
        _, rows = kernel.path(self.model, self.values, slots)
        lives = self.chain.lives
        leaving = np.zeros(len(lives.made), np.bool_)
        ahead: list[Operation] = []
        behind: list[list[Operation]] = []
        saved = -1  # the stage before, if it was saved
        for kind, first, last, copied, memory in rows.tolist():
            if copied:
                entering = lives.enters & (lives.made < first) & (lives.last >= first)
                whole = (lives.made == saved) & lives.read_back if saved >= 0 else entering & False
                leaving |= (entering if kind == kernel.PASS else entering & lives.read_back) | whole
            saved = first if kind == kernel.SAVE else -1
            if kind == kernel.SAVE:
                ahead.append((KEEP_ALL, first))
                behind.append([(BACKWARD, first)])
                continue
            again = [(what, stage) for what, stage, *_ in self.curve.rows(memory, first, last)]
            if kind == kernel.REST:
                ahead += again
            else:
                ahead += [(KEEP_INPUT if stage == first else FORGET, stage) for stage in range(first, last + 1)]
                behind.append(again)
        operations = [*ahead, *(done for part in reversed(behind) for done in part)]
        return self.chain.both(operations), leaving & (lives.size > 0)

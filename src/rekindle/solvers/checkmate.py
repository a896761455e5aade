"""Checkmate's mixed-integer program.

Jain, Jain, Nrusimha, Gholami, Abbeel, Keutzer, Stoica, Gonzalez, Checkmate: Breaking the Memory Wall with Optimal
Tensor Rematerialization, MLSys 2020, arXiv:1910.02653.

Problem: one stage per op of the baseline order; stage t ends with the first run of op t. R[t, i]: op i runs in stage t.
S[t, v]: value v is held from stage t - 1 to stage t. Least cost of the runs, with what is held during each run within
the budget. A value is freed in a stage after its last use there unless it is held on; that is linear through
F[t, v, i], v dies with the run of i in stage t.

Optimality: least cost within `limit` among schedules that keep the baseline order within each stage, run each op at
most once a stage, hold what a stage holds on until its end and the least values from their first run on, and write in
place only over what backward made; if the program is solved to the end, and to HiGHS's tolerance. With `max_overhead`,
least peak among those within that cost. Larger programs are relaxed to a linear program and rounded in the paper's two
phases: the held values first, S > 1/2, then the runs that these make necessary; lower budgets are tried until the judge
finds the limit kept.

Complexity: O(n (n + edges)) variables for n ops that make something that weighs; exponential in the worst case. Done in
whole numbers up to 60 such ops or so, rounded up to 200, declined above: there the baseline is all it gives.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from scipy.optimize import Bounds, milp

from ..exact.needed import overwritable
from ..exact.rows import Rows
from ..model.graph import Graph
from ..model.judge import simulate
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..saying.shares import EPS

TOLERANCE = 2e-6  # HiGHS's, of the largest value


# Variables of the largest program solved in whole numbers, and of the largest that is relaxed and rounded, beyond which graphs
# are declined. Measured to end within `SOLVE_S` on small CPU machines.
WHOLE_MOST_COLUMNS, RELAXED_MOST_COLUMNS = 12_000, 150_000
SOLVE_S = 30.0  # seconds that one program may take
NEGLIGIBLE_SHARE = 0.001  # of all bytes: the least values that hold at most that stay from their first run on; a guess
KEPT_BACK_SHARES = (0.0, 0.1, 0.2, 0.3)  # of the budget, kept back one after the other when rounding (the paper: 0.1)


def _declines(graph: Graph) -> str:
    n = int(graph.needed.sum())
    columns = n * (n + 1) // 2  # of runs alone
    if columns <= RELAXED_MOST_COLUMNS:
        columns = Program(graph, graph.weights("unit")).columns
    return "" if columns <= RELAXED_MOST_COLUMNS else f"{columns:,} variables or more are too many"


@register(
    "checkmate",
    graphs="any",
    objective="least cost within a peak, of stages in baseline order, each op at most once a stage",
    optimal="its objective, up to about 60 ops that weigh; larger ones are rounded, or declined above 200",
    complexity="a mixed-integer program of O(n (n + edges)) variables",
    citation="Jain et al., Checkmate: Breaking the Memory Wall with Optimal Tensor Rematerialization, MLSys 2020, "
    "arXiv:1910.02653",
    declines=_declines,
)
def checkmate(problem: Problem) -> Iterator[Schedule]:
    """The frontier-advancing program of Checkmate, solved by HiGHS within 30 s or the time limit."""
    graph = problem.graph
    yield Schedule.baseline(graph, "checkmate")
    if not graph.needed.any():
        return
    why = _declines(graph)
    if why:
        problem.progress(f"checkmate: {why}; use solver='auto'")
        return
    model = Program(graph, problem.weights)
    slack = None if problem.max_overhead is None else problem.max_overhead * float(model.cost.sum())
    tries = [(True, 0.0)] if model.columns <= WHOLE_MOST_COLUMNS else []
    tries += [(False, back) for back in (KEPT_BACK_SHARES if problem.room is not None else (0.0,))]
    for whole, back in tries:
        if problem.time_left <= 0:
            return
        goal = None if problem.room is None else problem.room * (1 - back)
        held = model.solve(goal, slack, whole, min(SOLVE_S, problem.time_left))
        if held is None:
            continue
        schedule = Schedule.from_runs(graph, model.runs(held), "checkmate")
        yield schedule
        if whole or problem.limit is None or simulate(graph, schedule).peak_bytes <= problem.limit:
            return


class Program:
    """Rows and columns. Stages and ops by position in the baseline order; values that no op reads are no columns."""

    def __init__(self, graph: Graph, weights: np.ndarray):
        a = graph.arrays
        self.graph = graph
        self.ops = [int(i) for i in np.flatnonzero(graph.needed)]
        self.cost = weights[self.ops].astype(np.float64)
        position = {i: t for t, i in enumerate(self.ops)}
        read = {v for i in self.ops for v in graph.ops[i].inputs} | set(graph.keep)
        made = [v for v in sorted(read, key=lambda v: (int(a.bytes[v]), v)) if a.producer[v] >= 0]
        total = np.cumsum([a.bytes[v] for v in made])
        small = int(np.searchsorted(total, NEGLIGIBLE_SHARE * total[-1], "right")) if made else 0
        self.left_out = int(total[small - 1]) if small else 0  # held from their first run on
        self.values = sorted(made[small:])
        self.made_by = {v: position[int(a.producer[v])] for v in self.values}
        self.inputs = [[v for v in dict.fromkeys(graph.ops[i].inputs) if v in self.made_by] for i in self.ops]
        self.outputs = [[v for v in graph.ops[i].outputs if v in self.made_by] for i in self.ops]
        unread = [sum(int(a.bytes[v]) for v in graph.ops[i].outputs if v not in read) for i in self.ops]
        self.beside = a.workspace[self.ops] + np.array(unread, np.int64)
        self.over = [
            set(overwritable(graph, i, safe=True))
            if graph.ops[i].outputs and graph.ops[i].outputs[0] in read
            else set()
            for i in self.ops
        ]
        self.readers: dict[int, list[int]] = {v: [] for v in self.values}
        for t, row in enumerate(self.inputs):
            for v in row:
                self.readers[v].append(t)
        n = len(self.ops)
        self.columns = sum(t + 1 for t in range(n)) + sum(
            max(0, n - 1 - self.made_by[v]) for v in self.values
        ) + sum(n - t for v in self.values for t in (self.made_by[v], *self.readers[v]))  # fmt: skip

    def solve(self, limit: float | None, slack: float | None, whole: bool, seconds: float) -> np.ndarray | None:
        """bool [stages, graph values]: what is held into each stage, or None if there is no solution in time.
        Least cost within the limit; without one, least peak within the slack."""
        a, n = self.graph.arrays, len(self.ops)
        if limit is not None:
            limit -= self.left_out
            if limit < 0:
                return None
        scale = float(max(1, a.bytes[self.values].max(initial=1)))
        rows = _Columns()
        run = {(t, i): rows.column() for t in range(n) for i in range(t + 1)}
        hold = {(t, v): rows.column() for v in self.values for t in range(self.made_by[v] + 1, n)}
        peak = rows.column(np.inf)
        for t in range(n):
            rows.add([(run[t, t], -1.0)], -1.0)
            for i in range(t + 1):
                for v in self.inputs[i]:
                    rows.add([(run[t, i], 1.0), (run[t, self.made_by[v]], -1.0), *_term(hold, t, v, -1.0)], 0.0)
        for (t, v), column in hold.items():
            rows.add([(column, 1.0), (run[t - 1, self.made_by[v]], -1.0), *_term(hold, t - 1, v, -1.0)], 0.0)
        for v in self.values:
            if a.keep[v]:  # live when the last stage ends
                rows.add([(run[n - 1, self.made_by[v]], -1.0), *_term(hold, n - 1, v, -1.0)], -1.0)
        for i, op in enumerate(self.ops):
            if not a.recompute[op]:
                rows.add([(run[t, i], 1.0) for t in range(i, n)], 1.0)
        for t in range(n):
            self._memory(t, rows, run, hold, peak, scale)
        spent = [(column, float(self.cost[i])) for (_, i), column in run.items()]
        unit = float(self.cost.sum()) or 1.0
        if slack is not None:
            rows.add([(c, w / unit) for c, w in spent], 1 + slack / unit + EPS)
        objective = np.zeros(len(rows.upper))
        if limit is None:
            objective[peak] = 1.0
        else:
            rows.upper[peak] = limit / scale - (TOLERANCE if scale * TOLERANCE > 1 else 0.0)
            objective[[c for c, _ in spent]] = [w / unit for _, w in spent]
        integrality = np.zeros(len(objective))
        if whole:
            integrality[list(run.values()) + list(hold.values())] = 1
        found = milp(objective, constraints=rows.constraint(len(rows.upper)), bounds=Bounds(0, np.array(rows.upper)),
                     integrality=integrality, options={"time_limit": seconds, "mip_rel_gap": 0.0})  # fmt: skip
        if found.x is None:
            return None
        held = np.ones((n, len(self.graph.values)), np.bool_)
        held[:, self.values] = False
        for (t, v), column in hold.items():
            held[t, v] = found.x[column] > 0.5
        return held

    def _memory(
        self, t: int, rows: _Columns, run: dict[tuple[int, int], int], hold: dict[tuple[int, int], int], peak: int,
        scale: float,
    ) -> None:  # fmt: skip
        """Rows that keep the bytes held during each run of stage t within the peak.

        A value that is in memory after op i is freed there only if it is not held on, and no later op of the stage reads it.
        """
        size, n = self.graph.arrays.bytes, len(self.ops)
        live = [(hold[t, v], size[v] / scale) for v in self.values if (t, v) in hold]
        for i in range(t + 1):
            live += [(run[t, i], size[v] / scale) for v in self.outputs[i]]
            # An op that does not run needs nothing beside; what is live then is live at a run before as well.
            now = [*live, (run[t, i], self.beside[i] / scale), (peak, -1.0)]
            over = {}
            for v in {*self.inputs[i], *self.outputs[i]}:
                dies = rows.column()
                rows.add([(dies, 1.0), (run[t, i], -1.0)], 0.0)
                later = [j for j in self.readers[v] if i < j <= t]
                for j in later:
                    rows.add([(dies, 1.0), (run[t, j], 1.0)], 1.0)
                if (t + 1, v) in hold:
                    rows.add([(dies, 1.0), (hold[t + 1, v], 1.0)], 1.0)
                elif t == n - 1 and self.graph.arrays.keep[v]:
                    rows.upper[dies] = 0.0
                live.append((dies, -size[v] / scale))
                if v in self.over[i]:
                    over[v] = dies
            if over:  # the first output takes the place of an input that dies
                into = rows.column()
                rows.add([(into, 1.0), *((dies, -1.0) for dies in over.values())], 0.0)
                now.append((into, -float(size[self.graph.ops[self.ops[i]].outputs[0]]) / scale))
            rows.add(now, 0.0)

    def runs(self, held: np.ndarray) -> list[int]:
        """The runs that the held values make necessary: each stage makes what its op, what it holds on and what these
        read lack."""
        out: list[int] = []
        live: set[int] = set()
        n, graph = len(self.ops), self.graph
        made_by = {v: t for t, i in enumerate(self.ops) for v in graph.ops[i].outputs}
        once = {i for i in range(n) if not graph.arrays.recompute[self.ops[i]]}
        for t in range(n):
            kept = {v for v in live if held[t, v] or made_by[v] in once}
            ahead = graph.keep if t == n - 1 else [v for v in self.values if held[t + 1, v] and made_by[v] <= t]
            wanted = {t} | {made_by[v] for v in ahead if v in made_by and v not in kept}
            for i in range(t, -1, -1):
                if i in wanted:
                    wanted |= {made_by[v] for v in graph.ops[self.ops[i]].inputs if v in made_by and v not in kept}
            out += [self.ops[i] for i in sorted(wanted)]
            live = kept | {v for i in wanted for v in graph.ops[self.ops[i]].outputs}
        return out


def _term(columns: dict[tuple[int, int], int], t: int, v: int, factor: float) -> list[tuple[int, float]]:
    return [(columns[t, v], factor)] if (t, v) in columns else []


class _Columns(Rows):
    """Columns from 0 to `upper`, and rows over them."""

    def __init__(self) -> None:
        super().__init__()
        self.upper: list[float] = []

    def column(self, upper: float = 1.0) -> int:
        self.upper.append(upper)
        return len(self.upper) - 1

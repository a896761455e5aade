"""All solvers on the same five graphs: peak, overhead, seconds and gap, as docs/solver_table.md.

All get the same request: least extra FLOPs within half of the plain step's activations. A solver without such a plan gives its
smallest one, which is marked.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from pathlib import Path

import more_models
from common import provenance
from page.text import table

import rekindle
from rekindle.ask import Fraction, LeastMemory, PlanOptions
from rekindle.errors import InfeasibleBudget, RekindleError
from rekindle.model.graph import BOUNDARY, Graph, Op, Value
from rekindle.model.plan import Plan
from rekindle.planning import registry
from rekindle.planning.planner import plan_graph
from rekindle.saying.sizes import format_bytes

TABLE = Path(__file__).parent.parent / "docs" / "solver_table.md"
SHARE = 0.5
FIGURES = ("of plain", "extra FLOPs", "seconds", "gap at most")  # columns after the activations
MODELS = ("resnet50", "densenet121", "unet", "gpt_blocks")


def chain(n: int, size: int = 2**20) -> Graph:
    """The step of a uniform chain: backward op i reads what forward op i read, and costs twice as much."""
    ops = [Op(f"f{i}", (i,), (i + 1,), 1.0, 1) for i in range(n)] + [Op(BOUNDARY, (n,), (n + 1,), recompute=False)]
    ops += [Op(f"b{i}", (2 * n - i, i), (2 * n - i + 1,), 2.0, 2, backward=True) for i in range(n - 1, -1, -1)]
    return Graph((Value(size),) * (2 * n + 2), tuple(ops), (2 * n + 1,), 0, f"chain of {n}")


def traced(name: str) -> Graph:
    """A model's step at its default batch, on tensors without data."""
    model, sample = more_models.load(name, fake=True)
    return replace(rekindle.trace(model, sample).graph, name=name)


def answer(graph: Graph, solver: str, seconds: float) -> tuple[Plan, bool]:
    """The solver's plan, and whether it is within the budget. It is searched for each time."""
    asked = PlanOptions(Fraction(SHARE), solver=solver, cost="flops", time_limit=seconds, cache=False)
    try:
        return plan_graph(graph, asked), True
    except InfeasibleBudget:
        return plan_graph(graph, replace(asked, goal=LeastMemory())), False


def row(graph: Graph, solver: str, seconds: float) -> dict[str, str]:
    """One line of the table."""
    start = time.perf_counter()
    try:
        plan, fits = answer(graph, solver, seconds)
    except RekindleError as e:
        return {"solver": solver, "activations": f"no plan: {str(e).partition(';')[0]}"} | dict.fromkeys(FIGURES, "")
    taken = time.perf_counter() - start
    part = plan.activation_peak_bytes / plan.baseline_activation_bytes
    figures = (f"{part:.1%}", f"+{plan.overhead:.1%}", f"{taken:.1f}", f"{plan.gap:.0%}")
    activations = format_bytes(plan.activation_peak_bytes)
    return {"solver": f"{solver}{'' if fits else ' *'}", "activations": activations} | dict(
        zip(FIGURES, figures, strict=True)
    )


def section(graph: Graph, solvers: list[str], seconds: float) -> str:
    lines = []
    for solver in solvers:
        lines.append(row(graph, solver, seconds))
        print(graph.name, *lines[-1].values(), sep=" | ", flush=True)
    return f"## {graph.name}, {len(graph.ops):,} ops\n\n{table(lines)}"


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--solvers", type=lambda s: s.split(","), help="only these, printed and not written")
    p.add_argument("--graphs", type=lambda s: s.split(","), default=["chain", *MODELS], help="only these, likewise")
    p.add_argument("--time-limit", type=float, default=20.0, help="seconds for each solver on each graph")
    given = p.parse_args()
    facts = provenance()
    solvers = given.solvers or [s.name for s in registry.all_solvers()]
    warm = chain(6)
    for solver in solvers:  # compiling the loops is no part of solving
        row(warm, solver, 5.0)
    parts = [section(chain(200) if g == "chain" else traced(g), solvers, given.time_limit) for g in given.graphs]
    if given.solvers or given.graphs != ["chain", *MODELS]:
        return
    head = (
        "# How the solvers compare\n\n"
        f"Least extra FLOPs within {SHARE:.0%} of the plain step's activations. * no plan within that: the smallest one. "
        f"At most {given.time_limit:g} s each.\n\n"
        f"{facts['date']}, {facts['hardware']}; Rekindle {facts['versions']['rekindle']}, torch "
        f"{facts['versions']['torch']}. Made by `make solver-table`."
    )
    TABLE.write_text("\n\n".join([head, *parts]) + "\n", encoding="utf-8")
    print(f"wrote {TABLE}")


if __name__ == "__main__":
    main()

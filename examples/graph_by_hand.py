"""Plans a graph written by hand, with its costs. Needs no PyTorch: the solvers work on graphs alone.

python examples/graph_by_hand.py --budget 0.5
python examples/graph_by_hand.py --budget 350MiB --solver auto
"""

from __future__ import annotations

import argparse
import sys

import rekindle

MIB = 2**20

# stage, layers in it, size of a layer's output in MiB, seconds of a layer forward and backward
STAGES = [
    ("stage1", 6, 48, 0.024, 0.048),
    ("stage2", 6, 24, 0.020, 0.040),
    ("stage3", 6, 12, 0.018, 0.036),
]
LAYERS = [(f"{stage}.{i}", mib, forward, backward) for stage, n, mib, forward, backward in STAGES for i in range(n)]
INPUT_MIB, WEIGHT_MIB = 12, 1


def build() -> rekindle.Graph:
    """One training step of a chain of layers: forward, the boundary, backward.

    A layer's backward reads the layer's input and the gradient of its output. It makes the gradient of the weights,
    which is kept, and the gradient of the input.
    """
    values: list[rekindle.Value] = []
    ops: list[rekindle.Op] = []

    def value(mib: int) -> int:
        values.append(rekindle.Value(mib * MIB))
        return len(values) - 1

    activations = [value(INPUT_MIB)]  # no op makes the input: the caller holds it during the whole step
    for name, mib, seconds, _ in LAYERS:
        activations.append(value(mib))
        ops.append(rekindle.Op(name, inputs=(activations[-2],), outputs=(activations[-1],), seconds=seconds))

    gradient = value(LAYERS[-1][1])
    ops.append(rekindle.Op("boundary", inputs=(activations[-1],), outputs=(gradient,), recompute=False))

    weight_gradients = []
    for i, (name, _, _, seconds) in reversed(list(enumerate(LAYERS))):
        inputs = (gradient, activations[i])
        weight_gradients.append(value(WEIGHT_MIB))
        outputs = (weight_gradients[-1],)
        if i > 0:  # the first layer needs no gradient of its input
            gradient = value(LAYERS[i - 1][1])
            outputs = (gradient, weight_gradients[-1])
        ops.append(rekindle.Op(f"{name}.backward", inputs, outputs, seconds=seconds, backward=True))

    resident = (INPUT_MIB + WEIGHT_MIB * len(LAYERS)) * MIB
    return rekindle.Graph(tuple(values), tuple(ops), tuple(weight_gradients), resident_bytes=resident, name="by hand")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--budget", default="0.5", help="'350MiB', or a fraction of the plain activation peak: 0.5")
    parser.add_argument("--solver", default="auto")
    args = parser.parse_args(argv)
    try:
        budget: str | float = float(args.budget)
    except ValueError:
        budget = args.budget

    graph = build()
    plan = rekindle.plan(graph, budget=budget, solver=args.solver)
    print(plan)
    print("\nthe step, op by op:")
    done: set[int] = set()
    for op in plan.schedule.runs:
        print(f"  {graph.ops[op].name}{' (again)' if op in done else ''}")
        done.add(op)


if __name__ == "__main__":
    main()
    assert "torch" not in sys.modules, "planning a graph must not import torch"

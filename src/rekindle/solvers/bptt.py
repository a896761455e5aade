"""Backpropagation through time within a memory: states, internals, or a mix of both.

Gruslys, Munos, Danihelka, Lanctot, Graves, Memory-Efficient Backpropagation Through Time, NeurIPS 2016,
arXiv:1606.03401.

Problem: a chain of t equal steps. Within memory m, store on the way hidden states (1 each), from which a step runs
once more before its backward; or internal states (alpha each), from which its backward runs at once; or both. Fewest
forward steps:

    hidden    C(t, m) = min over y of y + C(t - y, m - 1) + C(y, m),
    internal  C(t, m) = min over y of y + C(t - y, m - alpha) + C(y - 1, m),
    mixed     the lesser of the two, at each step.

Optimality: for the number of steps on a uniform chain, among schedules that keep what they store until its backward.
On other chains, and on graphs taken as the chain of stages between their splitting vertices, none: alpha is taken from
the averages, and sizes and costs are not looked at. `rotor` does.

Complexity: O(t m log t) for the table of all memories up to m, and O(t^2) for each memory in which the fewest steps are
not convex in t (see `kernels.revolve`). A number of memories are the candidates, whatever the goal.
"""

from __future__ import annotations

from collections.abc import Iterator

from ..kernels import revolve as kernel
from ..model.schedule import Schedule
from ..problem import Problem, register
from ..structure.chain import Chain, chain_of
from .revolve import MOST_PASSES, operations, spread

MEMORIES_PER_VARIANT = 16  # tried with states, with internals, and with a mix; a guess
# Bytes of one internal state, as a multiple of a hidden state's, are taken to be no more; a guess.
MOST_STATES_OF_AN_INTERNAL = 8


@register(
    "bptt",
    graphs="chain",
    objective="forward steps within a memory, on a chain of equal steps that keeps states or internals",
    optimal="for its objective, on a uniform chain",
    complexity="O(n m log n) for a memory of m states, O(n^2 m) at worst",
    citation="Gruslys, Munos, Danihelka, Lanctot, Graves, Memory-Efficient Backpropagation Through Time, NeurIPS 2016, "
    "arXiv:1606.03401",
)
def bptt(problem: Problem) -> Iterator[Schedule]:
    """Multi-level checkpointing of a recurrent network unrolled, or of any chain of equal steps."""
    chain = chain_of(problem.graph)
    if chain is None:
        yield Schedule.baseline(problem.graph, "bptt")
        return
    n, size = chain.turn, internal_size(chain)
    for state, internal, memory in ((1, size, n * size + 1), (0, 1, n + 1), (1, 0, n)):
        steps, choice = kernel.fewest_steps(n, memory, state, internal)
        for m in spread(memory, MEMORIES_PER_VARIANT):
            if steps[n, m] <= (MOST_PASSES + 1) * n or m == memory:
                yield from chain.schedules(operations(choice, m, state, internal), "bptt")
                if problem.time_left <= 0:
                    return


def internal_size(chain: Chain) -> int:
    """Bytes that backward needs of a stage, as a multiple of the bytes of a stage's input, on average and rounded."""
    states, internals = int(chain.input[1:].sum()), int(chain.saved[: chain.turn].sum())
    return min(MOST_STATES_OF_AN_INTERNAL, max(1, round(internals / states))) if states else 1

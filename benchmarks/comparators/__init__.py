"""The comparators of the benchmark, which are not installed; importing this package lets the suites run them.

checkpoint-blocks        torch.utils.checkpoint per repeated block
checkpoint-sequential    √n segments of blocks, including the modules before the first and after the last
selective-matmul         per block; saves results of matrix products, convolutions and attention
compile-0.75 … compile-0 torch.compile's activation_memory_budget
linear-cross-entropy     PyTorch's chunked head and loss, for language models (torch 2.13)
auto-chunker             Inductor's auto_chunker, which does the same in a captured step

`python benchmarks/bench.py` is `rekindle bench` with them.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from functools import partial

from rekindle.bench.cases import Case
from rekindle.bench.methods import REGISTERED, Comparator
from rekindle.model.plan import Plan
from rekindle.torch.trace import Trace

from . import auto_chunker, beside_plain, checkpointing, chunked_loss, compiled


# The pool hands the table to its processes, which import each function by its name: none is a lambda.
def _blocks(case: Case, *_: object, selective: bool = False) -> AbstractContextManager[None]:
    return checkpointing.per_block(case.model, selective)


def _sequential(case: Case, *_: object) -> AbstractContextManager[None]:
    return checkpointing.sequential(case.model, case.once)


def _chunked_loss(case: Case, *_: object) -> AbstractContextManager[None]:
    return chunked_loss.chunked_loss(case.model)


def _compiled(
    case: Case, traced: Trace | None, once: Plan | None, budget: float, before: compiled.Pass | None = None
) -> AbstractContextManager[bytes]:
    assert traced is not None
    assert once is not None
    return compiled.compiled(case.model, traced, once, budget, before)


REGISTERED.update(
    {
        "checkpoint-blocks": Comparator(_blocks),
        "checkpoint-sequential": Comparator(_sequential),
        "selective-matmul": Comparator(partial(_blocks, selective=True)),
        "compile-0.75": Comparator(partial(_compiled, budget=0.75), needs_trace=True),
        "compile-0.5": Comparator(partial(_compiled, budget=0.5), needs_trace=True),
        "compile-0.25": Comparator(partial(_compiled, budget=0.25), needs_trace=True),
        "compile-0": Comparator(partial(_compiled, budget=0.0), needs_trace=True),
        "linear-cross-entropy": Comparator(_chunked_loss, note=beside_plain.beside_plain),
        "auto-chunker": Comparator(
            partial(_compiled, budget=1.0, before=auto_chunker.in_chunks),
            needs_trace=True,
            note=beside_plain.beside_plain,
        ),
    }
)

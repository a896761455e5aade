"""Private names of torch that the comparators use and the package does not; `rekindle/torch/private.py` has the others.

`tests/torch/test_private_names.py` goes through every name of both files, and says which ones a release of torch took away.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

from torch.fx._lazy_graph_module import _make_graph_module as graph_module
from torch.fx._lazy_graph_module import _use_lazy_graph_module as lazy_graph_modules

__all__ = ["auto_chunker", "chunked_cross_entropy", "graph_module", "inductor_decompositions", "lazy_graph_modules"]


def chunked_cross_entropy() -> tuple[Any, Callable[..., Any]] | None:
    """The operator behind `torch.nn.functional.linear_cross_entropy` in chunks, and the Python function that it runs.

    None: torch has none, as before 2.13.
    """
    try:
        module = importlib.import_module("torch.nn.modules.linear_cross_entropy")
    except ImportError:
        return None
    made = module._linear_cross_entropy_batch_chunked
    return made._opoverload, made._init_fn


def auto_chunker() -> tuple[Callable[..., Any], type[Exception]] | None:
    """Inductor's pass that runs a graph's head and loss in chunks, and its error that says why a graph has no chunks.

    None: torch has none.
    """
    try:
        module = importlib.import_module("torch._inductor.fx_passes.auto_chunker")
    except ImportError:
        return None
    return module.chunk, module.CantChunk


def inductor_decompositions() -> dict[Any, Callable[..., Any]]:
    """Operators that Inductor takes apart before its passes, with the functions that do so."""
    table: dict[Any, Callable[..., Any]] = importlib.import_module(
        "torch._inductor.decomposition"
    ).select_decomp_table()
    return table

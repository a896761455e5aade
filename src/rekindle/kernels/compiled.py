"""How kernels are compiled: `entry` for functions that Python calls, `inner` for those that only kernels call.

For each function of `njit`, numba compiles wrappers for Python and for C, and a version for each literal argument. A function
that only kernels call is compiled without wrappers and versions, so that the first plan waits a fifth less for the compiler.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba as nb
from numba.extending import register_jitable

entry = nb.njit(cache=True, nogil=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
inner = register_jitable(cache=True)  # called from Python it runs as plain Python, slowly


def to_compile(kernel: Any) -> bool:
    """Whether an `entry` has yet to be compiled: this process has not, and the cache on disk holds nothing of it."""
    module = kernel.py_func.__module__.rpartition(".")[2]
    kept = Path(kernel.stats.cache_path).glob(f"{module}.{kernel.py_func.__name__}-*.nbi")
    return not kernel.signatures and not any(kept)

"""How kernels are compiled: what Python calls, and what only kernels call.

With a function of `njit` numba makes wrappers, for Python and for C, and a version for each literal argument. What only
kernels call needs none of them: a fifth of what the first plan after an installation waited for.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numba as nb
from numba.extending import register_jitable

entry = nb.njit(cache=True, nogil=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
inner = register_jitable(cache=True)  # called from Python it runs as Python, slowly


def to_compile(kernel: Any) -> bool:
    """Whether an `entry` has yet to be compiled: not here, and nothing of it lies on disk, as after an installation."""
    module = kernel.py_func.__module__.rpartition(".")[2]
    kept = Path(kernel.stats.cache_path).glob(f"{module}.{kernel.py_func.__name__}-*.nbi")
    return not kernel.signatures and not any(kept)

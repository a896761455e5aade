"""How kernels are compiled: what Python calls, and what only kernels call.

numba makes machine code of its own for every function of `njit`, with wrappers for Python and for C; those of functions that
only kernels call are never used, and took a third of the compiling that the first plan after an installation waits for.
"""

from __future__ import annotations

import numba as nb
from numba.extending import register_jitable

entry = nb.njit(cache=True, nogil=True, no_cfunc_wrapper=True)  # type: ignore[call-overload]
inner = register_jitable(cache=True)  # called from Python it runs as Python, slowly

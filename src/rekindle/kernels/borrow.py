"""Arrays without a count of references.

A compiled function that takes apart a tuple of arrays counts references up and down, atomically; where it is called a
million times a second, by two threads on the same arrays, that takes more time than its work. A borrowed array is the same
memory without a count. It must not outlive the array it is borrowed from, so it never leaves the function that borrows.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils
from numba.extending import intrinsic


def _borrow(typingctx: Any, array: Any) -> Any:
    """The same array, not counted."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        make = context.make_array(signature.return_type)
        out = make(context, builder, value=args[0])
        out.meminfo = cgutils.get_null_value(out.meminfo.type)
        out.parent = cgutils.get_null_value(out.parent.type)
        return out._getvalue()

    return array(array), codegen


borrow: Any = intrinsic(_borrow)

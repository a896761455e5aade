"""Arrays without a count of references.

A compiled function that takes apart a tuple of arrays counts references up and down, atomically; where it is called a
million times a second, by two threads on the same arrays, that takes more time than its work. numba also writes the counting
of every array of a tuple wherever the tuple is mentioned, and compiling that is most of its work. A borrowed array is the
same memory, of a type that has no count. It must not outlive the array it is borrowed from, so it never leaves the function
that borrows.
"""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.core.datamodel import models, register_default
from numba.extending import intrinsic


class Borrowed(types.Array):
    """numba's type of an array that is not counted."""

    def __init__(self, array: types.Array):
        super().__init__(
            array.dtype, array.ndim, array.layout, not array.mutable, f"borrowed {array.name}", array.aligned
        )


@register_default(Borrowed)
class _Uncounted(models.ArrayModel):
    """The same fields as an array, of which none is counted."""

    def traverse(self, builder: Any) -> list[Any]:
        return []

    def has_nrt_meminfo(self) -> bool:
        return False

    def get_nrt_meminfo(self, builder: Any, value: Any) -> None:
        return None


def _is_tuple(kind: Any) -> bool:
    return isinstance(kind, types.NamedTuple | types.NamedUniTuple)


def _type(kind: Any) -> Any:
    if _is_tuple(kind):
        return types.BaseTuple.from_types([_type(t) for t in kind.types], kind.instance_class)
    return Borrowed(kind) if isinstance(kind, types.Array) else kind


def _value(context: Any, builder: Any, kind: Any, value: ir.Value) -> ir.Value:
    if _is_tuple(kind):
        parts = [_value(context, builder, t, builder.extract_value(value, i)) for i, t in enumerate(kind.types)]
        return context.make_tuple(builder, _type(kind), parts)
    if not isinstance(kind, types.Array):
        return value
    out = context.make_array(_type(kind))(context, builder, value=value)
    out.meminfo = cgutils.get_null_value(out.meminfo.type)
    out.parent = cgutils.get_null_value(out.parent.type)
    return out._getvalue()


def _borrow(typingctx: Any, what: Any) -> Any:
    """The same array, or NamedTuple of arrays, not counted."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> ir.Value:
        return _value(context, builder, signature.args[0], args[0])

    return _type(what)(what), codegen


borrow: Any = intrinsic(_borrow)

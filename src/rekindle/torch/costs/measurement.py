"""One operator call's measured figures, as they are kept in memory and on disk, and the class of an operator by its name."""

from __future__ import annotations

from dataclasses import dataclass

SPREAD_MOST = 1e3  # a greater spread says no more: the timing is worth nothing


@dataclass(frozen=True)
class Measurement:
    """Figures of one distinct operator call. A call that could not be run has one too, so that no later process tries it.

    seconds : the least time of a run; None: not timed.
    spread : how far the two least rounds are apart, as a share of the least, at most SPREAD_MOST; 0 where they agree.
    workspace : bytes that it needs beside inputs and outputs; None: not measured.
    roofline : estimated seconds. moved : bytes read and written.
    """

    seconds: float | None
    spread: float
    workspace: int | None
    roofline: float
    moved: int


def op_of(key: str) -> str:
    """The operator's name in the key of a call: "aten.mm.default" of "aten.mm.default(0:float32…)"."""
    return key.partition("(")[0]


# class -> parts of names, looked for in this order; the first that occurs decides.
_PARTS = {
    "convolution": ("conv",),
    "product": ("mm.", "bmm", "matmul", "linear", "dot_product", "attention", "einsum"),
    "normalisation": ("norm", "softmax"),
    "reduction": (
        "sum", "mean", "max", "min.", "amin", "argmin", "var", "std", "prod", "pool", "nll_loss", "logsumexp", "all.",
        "any.", "sort", "topk",
    ),
    "copy": (
        "clone", "copy", "cat.", "stack", "index", "gather", "scatter", "slice", "select", "pad", "embedding", "flip",
        "roll", "zeros", "ones", "full", "upsample", "tri", "repeat",
    ),
}  # fmt: skip
ELEMENT_WISE = "element-wise"


def op_class(op: str) -> str:
    """The class of an operator with this name, such as "aten.mm.default": operators of one class have like costs where nothing
    of their own is known."""
    name = op.lower()
    return next((kind for kind, parts in _PARTS.items() if any(p in name for p in parts)), ELEMENT_WISE)

"""The class of an operator by its name: operators of one class have like costs where nothing of their own is known."""

from __future__ import annotations

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
    """The class of an operator with this name, such as "aten.mm.default"."""
    name = op.lower()
    return next((kind for kind, parts in _PARTS.items() if any(p in name for p in parts)), ELEMENT_WISE)

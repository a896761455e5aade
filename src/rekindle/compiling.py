"""The ways in which torch.compile runs a part, which differ in what its forward saves for backward."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .errors import UsageError
from .printed import value

SAVES = {
    "min-cut": "as torch.compile partitions it",
    "all": "every result that backward reads, and recomputes none",
    "products": "results of matrix products, convolutions and attention",
    "costly": "those of them that cost most to recompute for their bytes, up to half of the bytes",
    "attention": "results of attention",
    "inputs": "its inputs alone, and recomputes the rest",
    "gradients": "gradients that its forward makes, with the loss in slices of rows",
    "slices": "its inputs alone, and recomputes the loss in slices of rows",
    "half": "about half of the bytes, as torch.compile's memory budget picks them",
    "blocks": "the inputs of each block alone, and recomputes the rest block by block",
}
IN_SLICES = ("gradients", "slices")  # of the loss, where the training loop reads no logits
OF_WHOLE = ("min-cut", "products", "half", "blocks")  # the ways of a forward that is compiled in one piece
OF_PARTS = tuple(x for x in SAVES if x not in ("half", "blocks"))
OPTIONS = ("options", "mode", "fullgraph", "dynamic", "backend")  # of torch.compile


@dataclass(frozen=True)
class Compiled:
    """One way of torch.compile to run a part. saves : what forward saves for backward, one of `SAVES`."""

    saves: str = "min-cut"


@dataclass(frozen=True)
class CompileOptions:
    """How parts are compiled.

    mode : torch.compile's; None: its default. options : settings of Inductor, as torch.compile's `options`.
    """

    mode: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def draws_as_eager(self) -> bool:
        """Whether compiled parts draw eager's random numbers; Inductor's own take less memory."""
        return bool(self.options.get("fallback_random", False))

    @property
    def key(self) -> tuple[Any, ...]:
        """Equal for equal options, and hashable."""
        return self.mode, tuple(sorted(self.options.items()))

    def to_json(self) -> dict[str, Any]:
        """As plan files hold them."""
        return {"mode": self.mode, "options": dict(self.options)}

    @classmethod
    def parse(cls, given: Any) -> CompileOptions | None:
        """The options of `compile=`; None: nothing is compiled.

        Raises
        ------
        UsageError : torch.compile knows no such argument, or parts cannot be compiled that way.
        """
        if given is None or given is False:
            return None
        if given is True:
            return cls()
        if not isinstance(given, Mapping) or not all(k in OPTIONS for k in given):
            raise UsageError(
                f"compile={value(given)} should be True, or a dict of torch.compile's arguments: {', '.join(OPTIONS)}"
            )
        if given.get("backend", "inductor") != "inductor":
            raise UsageError(f"compile: backend={value(given['backend'])}: plans are for Inductor; leave `backend` out")
        if given.get("dynamic"):
            raise UsageError(
                "compile: dynamic=True: a plan is for one shape, and each new shape is compiled; leave it out"
            )
        if given.get("fullgraph") is False:
            raise UsageError(
                "compile: fullgraph=False: a part is compiled whole, or runs as it is; leave `fullgraph` out"
            )
        mode = given.get("mode")
        if mode not in (None, "default", "max-autotune-no-cudagraphs"):
            raise UsageError(
                f"compile: mode={value(mode)}: CUDA graphs keep memory of their own, which no plan counts; give "
                '"max-autotune-no-cudagraphs", or leave `mode` out'
            )
        options = given.get("options") or {}
        if not isinstance(options, Mapping) or not all(
            isinstance(k, str) and isinstance(x, bool | int | float | str) for k, x in options.items()
        ):
            raise UsageError(f"compile: options={value(options)} should be a dict of Inductor's settings")
        if any("cudagraph" in k and x for k, x in options.items()) or "custom_partitioner_fn" in options:
            raise UsageError(
                f"compile: options={value(options)}: neither CUDA graphs nor another partitioner go with a plan"
            )
        if options and mode not in (None, "default"):
            raise UsageError("compile: torch.compile takes `mode` or `options`, not both; leave one of the two out")
        return cls(None if mode == "default" else mode, dict(options))

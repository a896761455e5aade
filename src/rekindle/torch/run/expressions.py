"""Source text for the tensors and arguments of a program, and names that mean one thing each in it."""

from __future__ import annotations

import itertools
import keyword
import math
import re
from typing import Any

import torch
from torch import fx

from ..lowering.lowered import Lowered
from ..operators import rules
from ..operators.node_tensors import Part, is_member
from ..private import OpOverload
from ..tensors import rng
from .results import alone, each, join, own

_LITERALS = (bool, int, str, type(None))  # exactly these types: a subclass may print as anything
_LOCALS = (
    "forward", "backward", "inputs", "saved", "tangents", "rng", "out", "retain", "apart", "_", "numbers", "away",
)  # fmt: skip
_VARIABLE = re.compile(r"v\d|x_|c\d|__")  # names of variables and constants begin like this


class Expressions:
    """Writes expressions of one program.

    env : name -> the function or constant for which it stands in the source.
    """

    def __init__(self, lowered: Lowered):
        self.low = lowered
        self.env: dict[str, Any] = {
            "copy_": torch.ops.aten.copy_.default,
            "clone": torch.ops.aten.clone.default,
            "draw": rng.draw,
            "replay": rng.replay,
            "join": join,
            "each": each,
            "own": own,
            "alone": alone,
        }
        self._names: dict[Any, str] = {}
        self._late = {c.node for c, op in zip(lowered.calls, lowered.graph.ops, strict=True) if op.backward}
        self.totals: dict[fx.Node, str] = {}  # gradient of a result, a view of another tensor -> its own variable
        self.in_backward = False  # a schedule may run an op of backward in forward

    def variables(self, value: int) -> list[str]:
        """Variables of the tensors that lie in a value's storage."""
        if value in self.low.snapshots.values():
            return [f"v{value}"]
        return [self.name_of(p) for p in self.low.parts[value]]

    def name_of(self, part: Part) -> str:
        """The variable of one tensor that an op returns."""
        value = self.low.value_of[part]
        k = self.low.parts[value].index(part)
        return f"v{value}" if k == 0 else f"v{value}_{k}"

    def variable(self, placeholder: fx.Node) -> str:
        """The variable of an input, a parameter, a buffer or a gradient from the loss."""
        return self.name_of((placeholder, 0)) if (placeholder, 0) in self.low.value_of else f"x_{placeholder.name}"

    def itself(self, placeholder: fx.Node) -> str:
        """The variable in backward of an input's very tensor; `variable` is there the tensor with the memory that it had in
        forward, which the user may have replaced since (`weight.data = …`)."""
        return f"{self.variable(placeholder)}_now"

    def function(self, target: Any, like: str | None = None) -> str:
        """The name of a function. like : the name that it gets if that is free; None: the operator's own."""
        if target not in self._names:
            base = like or (target._schema.name.split("::")[-1] if isinstance(target, OpOverload)
                            else str(getattr(target, "__name__", "f")))  # fmt: skip
            self._names[target] = self._new_name(base)
            self.env[self._names[target]] = target
        return self._names[target]

    def _new_name(self, like: str) -> str:
        """An identifier that the source does not use yet."""
        base = "".join(ch if ch.isascii() and ch.isalnum() else "_" for ch in like)
        if not base.isidentifier() or keyword.iskeyword(base) or _VARIABLE.match(base):
            base = f"op_{base}"
        names = itertools.chain([base], (f"{base}_{k}" for k in itertools.count(2)))
        return next(x for x in names if x not in self.env and x not in _LOCALS)

    def _constant(self, x: Any) -> str:
        key = ("constant", id(x))
        if key not in self._names:
            self._names[key] = f"c{len(self.env)}"
            self.env[self._names[key]] = x
        return self._names[key]

    def argument(self, x: Any, reader: fx.Node | None, swap: bool = False) -> str:
        """Source of an argument of a call; `reader` is the node of the call, `swap` as in `tensor`."""
        if isinstance(x, fx.Node):
            swap = swap or reader in self.low.reads_snapshot
            given = x.op == "placeholder" and x not in self.low.captured.tangents
            if given and self.in_backward and reader in self._late and not (swap and x in self.low.snapshots):
                return self.itself(x)
            return self.tensor(x, swap)
        if type(x) in (int, float) and x in self.low.captured.numbers.markers:
            return f"numbers[{list(self.low.captured.numbers.markers).index(x)}]"
        if type(x) in _LITERALS or type(x) is float and math.isfinite(x):
            return repr(x)
        if isinstance(x, list | tuple):
            inside = ", ".join(self.argument(y, reader, swap) for y in x)
            return f"[{inside}]" if isinstance(x, list) else f"({inside}{',' if len(x) == 1 else ''})"
        if isinstance(x, dict):
            shown = (f"{self.argument(k, None)}: {self.argument(y, reader, swap)}" for k, y in x.items())
            return f"{{{', '.join(shown)}}}"
        return self._constant(x)

    def tensor(self, n: Any, swap: bool) -> str:
        """Source of the tensor for which a node stands; `swap`: a mutated placeholder is read from its snapshot."""
        if not isinstance(n, fx.Node):
            return self.argument(n, None)
        if n in self.totals:
            return self.totals[n]
        if swap and n in self.low.snapshots:
            return f"v{self.low.snapshots[n]}"
        if n.op == "get_attr":
            return self._constant(self.low.captured.constants[n])
        if n.op == "placeholder":
            return self.variable(n)
        if n.target in rules.PASS_THROUGH or n in self.low.writes.over or n in self.low.writes.back:
            return self.tensor(n.args[0], swap)
        if is_member(n):
            part: Any = (n.args[0], n.args[1])
            if part in self.low.value_of:
                return self.name_of(part)
            if one := rules.one_view(*part):
                target, (base, *rest) = one
                return f"{self.function(target)}({', '.join(self.argument(x, None, swap) for x in (base, *rest))})"
            return f"{self.tensor(part[0], swap)}[{self.argument(part[1], None)}]"
        if (n, 0) in self.low.value_of and isinstance(n.meta.get("val"), torch.Tensor):
            return self.name_of((n, 0))
        if n not in self.low.views:
            val = n.meta.get("val")
            members = [self.name_of((n, i)) if (n, i) in self.low.value_of else "None" for i in range(len(val or ()))]
            return f"({', '.join(members)},)"
        # The loss may give an expanded gradient, and kernels may lay results out in other strides than torch's shape rules
        # say. Where such a view does not exist, eager has copied.
        target = _OR_COPIES.get(n.target, n.target)
        parts = [self.argument(a, None, swap) for a in n.args]
        parts += [keyword_argument(k, self.argument(a, None, swap)) for k, a in n.kwargs.items()]
        return f"{self.function(target)}({', '.join(parts)})"


# View -> a function that copies where the view does not exist.
_OR_COPIES: dict[Any, Any] = {
    torch.ops.aten.view.default: torch.reshape,
    torch.ops.aten.view_as_complex.default: rules.as_complex,
}


def keyword_argument(name: str, value: str) -> str:
    """Source of a keyword argument in a call."""
    plain = name.isidentifier() and not keyword.iskeyword(name)
    return f"{name}={value}" if plain else f"**{{{str(name)!r}: {value}}}"

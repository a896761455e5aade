"""The values of a graph that is being made: one for each storage, and the tensors that lie in it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import fx

from ...model.graph import Value
from ..operators import rules
from ..operators.node_tensors import Part, bytes_spanned, storage_bytes, tensors_of, with_values
from ..operators.table import OVERWRITES, may_overwrite


class Storages:
    """Values in order of their ids, found by tensor and by storage.

    values : the value of each id.
    parts : for each value, the tensors that live in its storage, as the producing node returns them.
    value_of : tensor -> value id, for placeholders and for the tensors that ops produce.
    views : nodes that are views; whoever makes the graph adds them.
    """

    def __init__(self) -> None:
        self.values: list[Value] = []
        self.parts: list[list[Part]] = []
        self.value_of: dict[Part, int] = {}
        self.views: set[fx.Node] = set()
        self._by_storage: dict[int, int] = {}

    def new(self, size_bytes: int) -> int:
        """The id of a new value without a tensor: a token (0 bytes), or a copy."""
        self.values.append(Value(size_bytes))
        self.parts.append([])
        return len(self.values) - 1

    def new_of(self, t: torch.Tensor, part: Part) -> int:
        """The id of a new value for the storage of `t`, in which `part` lives."""
        v = self.new(storage_bytes(t))
        self._by_storage[t.untyped_storage()._cdata] = v
        self.add_part(v, part)
        return v

    def add_input(self, t: torch.Tensor, part: Part) -> None:
        """Note that the input `part` lives in the storage of `t`. Only the bytes of that storage count that inputs use: the
        rest is not the call's, such as the other rows of a table of which some are given."""
        v = self.find(t)
        if v is None:
            v = self.new_of(t, part)
        else:
            self.add_part(v, part)
        self.values[v] = Value(bytes_spanned(n.meta["val"] for n, _ in self.parts[v]))

    def add_part(self, v: int, part: Part) -> None:
        """Note that `part` lives in value v too."""
        self.parts[v].append(part)
        self.value_of[part] = v

    def lies_in(self, n: fx.Node, v: int) -> None:
        """Note that the tensors of a node lie in value v, whatever storage their fake ones have."""
        self._by_storage.update({t.untyped_storage()._cdata: v for _, t in tensors_of(n)})

    def find(self, t: torch.Tensor) -> int | None:
        """The id of the value for the storage of `t`, or None."""
        return self._by_storage.get(t.untyped_storage()._cdata)

    def read_by(self, n: fx.Node, read: Iterable[torch.Tensor]) -> list[int]:
        """The values behind the tensors that a node reads, each once."""
        found = dict.fromkeys(map(self.find, read))
        assert None not in found, f"{n} reads a tensor before it is made"
        return [v for v in found if v is not None]

    def behind(self, n: fx.Node) -> list[int]:
        """The values behind every tensor that a node returns, each once."""
        return list(dict.fromkeys(v for _, t in tensors_of(n) if (v := self.find(t)) is not None))

    def overwritable(self, n: fx.Node) -> dict[int, int]:
        """Value over which the op may write its result -> position of the argument.

        That argument, or the tensor of which it is a view, is the whole storage, laid out as the result.
        """
        out = n.meta.get("val")
        rows: dict[int, int] = {}
        for position in OVERWRITES.get(n.target, {}):
            a: Any = n.args[position] if position < len(n.args) else None
            v = self._sole_value(a)
            t = a.meta.get("val") if v is not None else None
            if v is None or not isinstance(t, torch.Tensor) or not isinstance(out, torch.Tensor):
                continue
            whole = storage_bytes(t) == t.numel() * t.element_size() == storage_bytes(out) and t.storage_offset() == 0
            same = (t.shape, t.stride(), t.dtype, t.device) == (out.shape, out.stride(), out.dtype, out.device)
            others = (x for o in n.all_input_nodes if o is not a for _, x in tensors_of(o))
            apart = whole and same and v not in map(self.find, others)
            if apart and may_overwrite(n.target, position, with_values(n.args)):
                rows.setdefault(v, position)
        return rows

    def _sole_value(self, a: Any) -> int | None:
        """The value of tensor `a`, if an op made it with a storage of its own and `a` is the only tensor in it."""
        values = self.behind(a) if isinstance(a, fx.Node) else []
        parts = self.parts[values[0]] if len(values) == 1 else []
        if len(parts) != 1 or parts[0][0].op != "call_function":
            return None
        made_by = parts[0][0]
        return values[0] if made_by not in self.views and rules.returns_new(made_by.target) else None

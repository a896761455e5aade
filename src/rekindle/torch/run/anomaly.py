"""Names the op and the module that made a NaN in a planned backward, under `torch.autograd.set_detect_anomaly(True)`."""

from __future__ import annotations

import linecache
from typing import Any

import torch
from torch import fx

from ..lowering.lowered import Lowered
from ..private import OpOverload, TorchDispatchMode
from ..situation.module_paths import printable
from .program import Program, running_frame


class NamesNaN(TorchDispatchMode):
    """Raises RuntimeError, as autograd does, when a backward op returns a NaN that leaves its autograd function. NaNs inside
    an autograd function may be masked away again."""

    def __init__(self, lowered: Lowered, program: Program):
        super().__init__()
        self._low, self._program = lowered, program
        self._given = set(lowered.captured.gradients.values())

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if _is_view(func):
            return out
        frame = running_frame({self._program.file})
        line = 0 if frame is None else frame.f_lineno
        op = self._program.ops.get(line)
        node = self._low.calls[op].node if op is not None else None
        if op is None or node is None or not self._low.graph.ops[op].backward or not self._leaves(node):
            return out
        made = out if isinstance(out, tuple | list) else [out]
        for t in made:
            if isinstance(t, torch.Tensor) and (t.is_floating_point() or t.is_complex()) and bool(t.isnan().any()):
                path = printable(self._low.captured.module_path.get(node, ""))
                source = linecache.getline(self._program.file, line).strip()
                raise RuntimeError(
                    f"{node.target} returned nan values in the backward of {path or 'the model'}, in line {line} of the "
                    f"planned program: {source}"
                )
        return out

    def _leaves(self, node: fx.Node) -> bool:
        """Whether another autograd function or the caller reads the node's result."""
        seq = node.meta.get("seq_nr")
        stack = [node]
        while stack:
            n = stack.pop()
            if seq is None or n in self._given:
                return True
            for u in n.users:
                if u.op == "output" or u.meta.get("seq_nr") != seq:
                    return True
                if u in self._low.views:
                    stack.append(u)
        return False


def _is_view(func: Any) -> bool:
    returns = func._schema.returns if isinstance(func, OpOverload) else ()
    return bool(returns) and all(r.alias_info is not None and not r.alias_info.is_write for r in returns)

"""Values that code in backward reads, in parts that torch.compile runs: compiled code has them as they were in forward."""

from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Mapping
from typing import Any

from torch import nn

from ...errors import RekindleError
from ..situation.callables import codes_in
from ..situation.globals import ON_TENSORS, Globals
from ..situation.values import Key, Watch, key_of
from ..tensors import tree
from ..tensors.objects import function_in
from ..undo.side_effects import methods_of


class LateValues:
    """The values that autograd Functions and hooks of a module may read in backward, as far as its code names them."""

    def __init__(self, model: nn.Module):
        kinds = {type(m) for m in model.modules() if type(m).__module__.partition(".")[0] != "torch"}
        methods = [f for kind in kinds for f in map(function_in, methods_of(kind)) if isinstance(f, types.FunctionType)]
        named = Globals(methods, Watch(), ())
        self._model, self._code = weakref.ref(model), [*named.backward, *named.hung(ON_TENSORS)]
        self._names = {k for f in self._code for c in codes_in(f.__code__) for k in c.co_names}

    def _keys(self, model: nn.Module) -> dict[str, Key]:
        held = [(path, vars(m)) for path, m in model.named_modules()]
        found = {
            f"{path}.{k}".lstrip("."): key_of(table[k]) for path, table in held for k in self._names & table.keys()
        }
        return Globals(self._code, Watch(), ()).keys | found

    def watch(self, result: Any) -> None:
        """Let the backward of this result raise an error if one of the values has changed until then."""
        model = self._model()
        if self._code and model is not None:
            for node in {t.grad_fn for t in tree.tensors_in(result) if t.grad_fn is not None}:
                node.register_prehook(functools.partial(self._compare, self._keys(model)))

    def _compare(self, before: Mapping[str, Key], _: Any) -> None:
        model = self._model()
        changed = [] if model is None else [k for k, x in self._keys(model).items() if before.get(k) != x]
        if changed:
            raise RekindleError(
                f"{changed[0]} was set after forward, and code in backward of {type(model).__name__} may read it; "
                "compiled code reads it in forward. Set it before forward, or plan without compile="
            )

"""What sees every operator that runs, real or fake: the base of the instruments, and several of them in one."""

from __future__ import annotations

from typing import Any

import torch

from ..capture.private import OpOverload, TorchDispatchMode

WHICH_DEVICE = torch.ops.prim.device.default  # a question: nothing runs. A fake DenseNet is asked 5,000 times per step


class Instrument(TorchDispatchMode):
    """Context manager: `before` and `after` are called around every operator that runs inside, forward and backward."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is WHICH_DEVICE:
            return func(*args)
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented  # a wrapper (DTensor, …): what it runs on its inner tensors comes back here
        if torch.is_inference_mode_enabled() and isinstance(func, OpOverload):
            with self:  # composite operators come whole there: take them apart as they are everywhere else
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        self.before(func, args, kwargs)
        out = func(*args, **kwargs)
        self.after(func, args, kwargs, out)
        return out

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        """`func` is about to run."""

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """`func` has run and given `out`."""


class Together(Instrument):
    """Several instruments on one step: each operator is dispatched once for all."""

    def __init__(self, *instruments: Instrument) -> None:
        super().__init__()
        self.instruments = instruments

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        for one in self.instruments:
            one.before(func, args, kwargs)

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        for one in self.instruments:
            one.after(func, args, kwargs, out)

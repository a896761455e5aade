"""Instruments see every operator that runs, on real or fake tensors: their base class, and several combined in one."""

from __future__ import annotations

from typing import Any

import torch

from ..private import OpOverload, TorchDispatchMode

# It only asks for a device and runs nothing. A step of a fake DenseNet asks 5,000 times.
WHICH_DEVICE = torch.ops.prim.device.default


class Instrument(TorchDispatchMode):
    """Context manager that calls `before` and `after` around every operator that runs inside, forward and backward."""

    supports_higher_order_operators = True

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is WHICH_DEVICE:
            return func(*args)
        kwargs = kwargs or {}
        if any(hasattr(t, "__tensor_flatten__") for t in types):
            return NotImplemented  # a wrapper (DTensor, …): the operators that it runs on its inner tensors come here later
        if torch.is_inference_mode_enabled() and isinstance(func, OpOverload):
            with self:  # inference mode passes composite operators whole: decompose them as every other mode does
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        self.before(func, args, kwargs)
        out = func(*args, **kwargs)
        self.after(func, args, kwargs, out)
        return out

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        """Called before `func` runs."""

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        """Called after `func` has run and returned `out`."""


class Together(Instrument):
    """Several instruments on one step, so that each operator is dispatched once for all of them."""

    def __init__(self, *instruments: Instrument) -> None:
        super().__init__()
        self.instruments = instruments

    def before(self, func: Any, args: Any, kwargs: Any) -> None:
        for one in self.instruments:
            one.before(func, args, kwargs)

    def after(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        for one in self.instruments:
            one.after(func, args, kwargs, out)

"""The forward of a part that torch.compile runs."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ... import notices
from ...compiling import Compiled, CompileOptions
from ..capture import private
from ..capture.lock import LOCK
from ..run.own_forward import SwitchedForward
from .caches import without_caches
from .compiled_calls import compiled_call
from .recording import signature


class CompiledForward(SwitchedForward):
    """The forward of a part that runs compiled, in one way.

    way : what forward saves; None: the part runs as it is. keeps_caches : the step makes
    key-value caches, as `config.use_cache` says.
    """

    def __init__(self, model: nn.Module, way: Compiled | None, options: CompileOptions, keeps_caches: bool = False):
        super().__init__(model)
        self.way, self.options, self.keeps_caches = way, options, keeps_caches
        self._training = model.training
        self._call: Any = None
        self._fails = False

    def _pickled(self) -> Any:
        way = None if self.way is None else self.way.saves
        return way, self.options.to_json(), self.keeps_caches, self._training, self.is_off

    def _unpickle(self, pickled: Any) -> None:
        way, options, self.keeps_caches, self._training, self.is_off = pickled
        self.way, self.options = (
            None if way is None else Compiled(way),
            CompileOptions(options["mode"], options["options"]),
        )
        self._call, self._fails = None, False

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledForward:
        copied = super().__deepcopy__({**memo})
        copied._call = None
        return copied

    @private.not_traced_by_compile
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        runs_plain = (
            self.way is None or self.is_off or self._fails or LOCK.mine or not torch.is_grad_enabled() or model is None
            or model.training != self._training or private.in_func_transform() or private.in_forward_ad()
        )  # fmt: skip
        if runs_plain or private.modes_are_on():  # under which torch.compile compiles nothing
            return self.plain(*args, **kwargs)
        assert model is not None
        assert self.way is not None
        first = self._call is None
        if first:
            self._call = compiled_call(self._kind(model), self.way, self.options)
        with without_caches(model, self.keeps_caches), _quiet() if first else contextlib.nullcontext():
            try:
                return self._call(model, *args, **kwargs)
            except Exception as e:
                if type(e).__name__ != "FailOnRecompileLimitHit":
                    raise
                self._fails = True
                notices.warn(
                    f"{type(model).__name__} was called with so many kinds of inputs that torch.compile compiles no more "
                    f"({e}): its calls run as they are from now on, in more memory. Pad inputs to a few sizes"
                )
                return self.plain(*args, **kwargs)

    def _kind(self, model: nn.Module) -> Any:
        return signature(model) if self._own is None else id(model)

    @contextlib.contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Inside, calls run compiled as they are, if compiled at all: without a plan."""
        before, call = self.way, self._call
        self.way, self._call = None if before is None else Compiled(), None
        try:
            yield
        finally:
            self.way, self._call = before, call


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Inside, Dynamo does not say that in-place operators in a part would harm what it saves: ways are compared by numbers."""
    log = logging.getLogger("torch._higher_order_ops.wrap")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)

"""One stage of a model's forward, and the compiled code that equal stages share."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from ...compiling import IN_SLICES, Compiled, CompileOptions
from .compiled_forward import CompiledForward, NotCompiled, settings
from .compiler import compile_graph
from .sliced_loss import has_slices, sliced


class Stage(nn.Module):
    """One stage of a forward. It is a function of tensors: the weights that it reads are among its inputs.

    path : of the block that it holds, "before" the next block, or "after" the last one. kind : equal for stages that share
    what is compiled.
    """

    def __init__(self, path: str, kind: str, body: fx.GraphModule):
        super().__init__()
        # Equal stages share the body. In __dict__, it is no submodule whose hooks would be looked for.
        vars(self).update(_path=path, _kind=kind, _body=body, _weights=((), ()))

    @property
    def path(self) -> str:
        return str(vars(self)["_path"])

    @property
    def kind(self) -> str:
        return str(vars(self)["_kind"])

    def forward(self, *tensors: torch.Tensor) -> Any:
        return vars(self)["_body"](*tensors)

    def has_slices(self, saves: str) -> bool:
        """Whether its loss can run in slices of rows, in one of the ways `compiling.IN_SLICES`."""
        return has_slices(vars(self)["_body"], saves == "gradients")

    def body(self, saves: str) -> fx.GraphModule:
        """The graph that a way compiles."""
        whole: fx.GraphModule = vars(self)["_body"]
        return sliced(whole, saves == "gradients") if saves in IN_SLICES else whole

    def weighs(self, parameters: Sequence[int], buffers: Sequence[int]) -> None:
        """Note which of its inputs are parameters and buffers of the model."""
        vars(self).update(_weights=(parameters, buffers))

    @contextlib.contextmanager
    def owning(self, tensors: Sequence[torch.Tensor]) -> Iterator[None]:
        """Inside, the parameters and buffers among these inputs are the stage's own, as a module's are while it is measured."""
        parameters, buffers = vars(self)["_weights"]
        self._parameters.update({str(i): tensors[i] for i in parameters})  # type: ignore[misc]
        self._buffers.update({str(i): tensors[i] for i in buffers})
        try:
            yield
        finally:  # the model may be given other parameters, and the old ones should go
            self._parameters.clear()
            self._buffers.clear()


class StageForward(CompiledForward):
    """The forward of a stage that runs compiled. Dynamo's guards of the whole forward choose the stages that a call runs."""

    @property
    def is_ready(self) -> bool:
        known = _compiled.get((self.kind, self.way, self.options.key))
        return super().is_ready or known is not None and known.is_compiled

    def _make_call(self, model: nn.Module) -> Callable[..., Any]:
        assert isinstance(model, Stage)
        assert self.way is not None
        key = model.kind, self.way, self.options.key
        if key not in _compiled:
            _compiled[key] = _Lazily(model.body(self.way.saves), settings(self.way, self.options))
        return _compiled[key]


def compiled_forward(
    part: nn.Module, way: Compiled | None, options: CompileOptions, kind: str, keeps_caches: bool = False
) -> CompiledForward:
    """The forward of a part, a submodule or a stage, that runs compiled. Arguments as of `CompiledForward`."""
    made = StageForward if isinstance(part, Stage) else CompiledForward
    return made(part, way, options, kind, keeps_caches)


_compiled: dict[Any, _Lazily] = {}


class _Lazily:
    """A compiled graph of (stage, *tensors), compiled by its first call."""

    def __init__(self, body: fx.GraphModule, how: dict[str, Any]):
        self._body: fx.GraphModule | None = body
        self._how = how
        self._call: Any = None

    @property
    def is_compiled(self) -> bool:
        return self._call is not None

    def __call__(self, _: nn.Module, *tensors: torch.Tensor) -> Any:
        if self._call is None:
            assert self._body is not None
            try:
                self._call = compile_graph(self._body, tensors, self._how)
            except torch.OutOfMemoryError:
                raise
            except Exception as e:  # torch.compile itself makes one class of the errors of its backends
                raise NotCompiled(f"{type(e).__name__}: {e}") from e
            self._body = None
        return self._call(*tensors)


def block_of(path: str) -> str:
    """The block by which a stage is named; "" where none is."""
    words = [w for w in path.split() if w not in ("before", "after", "all", "to") and not w.startswith("#")]
    return words[-1] if words else ""

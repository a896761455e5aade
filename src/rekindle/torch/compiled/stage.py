"""One stage of a model's forward, and the compiled code that stages share whose graphs, inputs and surroundings are equal."""

from __future__ import annotations

import contextlib
import hashlib
import itertools
import types
import uuid
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from ...compiling import IN_SLICES, Compiled, CompileOptions
from ..situation.surroundings import surroundings
from ..tensors.op_tensors import content_bytes
from .compiled_forward import CompiledForward, NotCompiled, settings
from .compiler import compile_graph, is_operator
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


DIGITS = 16
_KNOWN = ("torch", "_operator", "operator", "builtins", "math")  # modules whose functions are the same ones everywhere
_ME, _numbers = uuid.uuid4().hex, itertools.count()
_tokens: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()


def kind_of(body: fx.GraphModule) -> str:
    """A digest of the graph, of its inputs and of the state that shapes what is compiled."""
    deterministic = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    text = repr((_lines(body), surroundings(), deterministic))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _lines(body: fx.GraphModule) -> list[Any]:
    at: dict[fx.Node, int] = {}
    storages: dict[Any, int] = {}
    lines: list[Any] = []
    for i, n in enumerate(body.graph.nodes):
        at[n] = i
        if n.op == "placeholder":
            lines.append(_input(n.meta.get("example_value"), storages))
        elif n.op == "get_attr":
            lines.append(_attribute(body, str(n.target)))
        else:
            lines.append((n.op, _target(n), repr(fx.node.map_arg((n.args, n.kwargs), lambda x: _At(at[x])))))
    return lines


def _input(t: Any, storages: dict[Any, int]) -> Any:
    if not isinstance(t, torch.Tensor) or t.layout is not torch.strided:
        return repr(t)
    shared = storages.setdefault(t.untyped_storage()._cdata, len(storages))
    like = type(t).__name__, tuple(t.shape), t.stride(), t.dtype, str(t.device), t.requires_grad
    return *like, shared, t.storage_offset()


def _target(node: fx.Node) -> str:
    """A name of the function that the node calls. One that is not torch's has another name in each process: equal names do not
    say equal code."""
    if isinstance(node.target, str) or is_operator(node.target):
        return str(node.target)
    module = str(getattr(node.target, "__module__", ""))
    name = str(getattr(node.target, "__qualname__", node.target))
    if name.endswith("<locals>.fn"):  # torch's functions that choose between two, such as max_pool2d
        name = str(getattr(node.target, "__name__", name))
    if isinstance(node.target, types.BuiltinFunctionType):  # of C
        return f"{module}.{name}"
    if module.partition(".")[0] in _KNOWN and "<locals>" not in name and "triton" not in name:
        return f"{module}.{name}"
    try:
        return _tokens.setdefault(node.target, f"{_ME} {next(_numbers)}")
    except TypeError:  # no weak references to it
        return f"{_ME} {id(node.target)} {next(_numbers)}"


def _attribute(body: fx.GraphModule, name: str) -> Any:
    found: Any = body
    for part in name.split("."):
        found = getattr(found, part)
    if isinstance(found, fx.GraphModule):
        return _lines(found)
    if isinstance(found, torch.Tensor):
        like = str(found.dtype), tuple(found.shape), found.stride(), str(found.device), found.requires_grad
        return *like, hashlib.sha256(content_bytes(found)).hexdigest()
    return repr(found)


class _At(int):
    """The number of a node, which no number in the arguments looks like."""

    def __repr__(self) -> str:
        return f"%{int(self)}"

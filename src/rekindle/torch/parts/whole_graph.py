"""The stages of a model: its whole forward as torch.compile sees it, cut where its repeated blocks begin and end.

Much of what decides the peak of a language model is no module: its loss, masks and rotary tables lie in the model's own forward.
Dynamo's graph holds them. It is cut into stages at the boundaries of blocks, and each stage is compiled by itself in its own way.
Code between two blocks belongs to the block before it, unless it uses weights: then it is a stage of its own. Autograd links
the stages, so they need not form a chain: what a U-Net hands across is an output of one stage and an input of another.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import hashlib
import logging
import re
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn
from torch._dynamo import config as dynamo
from torch._guards import TracingContext, tracing
from torch._subclasses import FakeTensorMode
from torch.fx.passes.split_module import split_module

from ...compiling import Compiled, CompileOptions
from ..capture.surroundings import surroundings
from .blocks import chain_of_leaves, find_blocks
from .compiled_calls import own_forward, own_function, settings
from .compiled_forward import CompiledForward

DIGITS = 16
_SELF, _NAME = re.compile(r"^L\['[^']*'\]\.?"), re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|(\d+))\]")


class Stage(nn.Module):
    """One stage of a forward. It is a function of tensors: the weights that it reads are among its inputs.

    path : of the block that it holds, "before" the next block, or "after" the last one. kind : equal for stages that share
    what is compiled.
    """

    def __init__(self, path: str, kind: str, body: fx.GraphModule):
        super().__init__()
        # Equal stages share the body. In __dict__, it is no submodule whose hooks would be looked for.
        vars(self).update(_path=path, _kind=kind, _body=body)

    @property
    def path(self) -> str:
        return str(vars(self)["_path"])

    @property
    def kind(self) -> str:
        return str(vars(self)["_kind"])

    def forward(self, *tensors: torch.Tensor) -> Any:
        return vars(self)["_body"](*tensors)

    def own(self, tensors: Sequence[torch.Tensor], parameters: Mapping[int, Any], buffers: Mapping[int, Any]) -> None:
        """Count those of its inputs that belong to the model among its own parameters and buffers, while it is measured."""
        self._parameters.update({str(i): t for i, t in enumerate(tensors) if id(t) in parameters})  # type: ignore[misc]
        self._buffers.update({str(i): t for i, t in enumerate(tensors) if id(t) in buffers})

    def disown(self) -> None:
        """Undo `own`: the model may be given other parameters, and the old ones should go."""
        self._parameters.clear()
        self._buffers.clear()


class StageForward(CompiledForward):
    """The forward of a stage that runs compiled. Dynamo's guards of the whole forward serve all stages."""

    def _make_call(self, model: nn.Module) -> Callable[..., Any]:
        assert isinstance(model, Stage) and self.way is not None
        key = model.kind, self.way, self.options.key
        if key not in _compiled:
            _compiled[key] = _Lazily(vars(model)["_body"], settings(self.way, self.options))
        return _compiled[key]


_compiled: dict[Any, _Lazily] = {}


class _Lazily:
    """A compiled graph of (stage, *tensors), compiled by its first call."""

    def __init__(self, body: fx.GraphModule, how: dict[str, Any]):
        self._body, self._how = body, how
        self._call: Any = None

    def __call__(self, _: nn.Module, *tensors: torch.Tensor) -> Any:
        if self._call is None:
            from torch._inductor.compile_fx import compile_fx

            with tracing(TracingContext(FakeTensorMode(allow_non_fake_inputs=True))):  # of shapes that do not vary
                self._call = compile_fx(copy.deepcopy(self._body), list(tensors), config_patches=self._how)
        return self._call(*tensors)


class StagedForward(CompiledForward):
    """A model's own forward, run in stages. Calls that Dynamo's guards have not seen are traced and cut anew.

    stages : of the newest graph.
    """

    def __init__(self, model: nn.Module, options: CompileOptions):
        super().__init__(model, Compiled(), options, "", keeps_caches=True)  # whoever calls it says whether caches are made
        self.ways: Mapping[str, Compiled] = {}
        self.stages: list[Stage] = []
        self._bodies: dict[str, fx.GraphModule] = {}
        self._noted: Callable[..., Any] | None = None

    def run_by(self, ways: Mapping[str, Compiled]) -> None:
        """ways : path of a stage -> its way. Stages that are not named run uncompiled."""
        self.ways = dict(ways)
        for stage in self.stages:
            self._set(stage)

    @contextlib.contextmanager
    def calls_noted(self, noted: Callable[..., Any]) -> Iterator[None]:
        """Inside, `noted(stage, *tensors)` stands in place of the forward of each stage."""
        self._noted = noted
        try:
            self.run_by({})
            yield
        finally:
            self._noted = None
            self.run_by({})

    def _set(self, stage: Stage) -> None:
        vars(stage).pop("forward", None)
        if self._noted is not None:
            vars(stage)["forward"] = functools.partial(self._noted, stage)
        elif (way := self.ways.get(stage.path)) is not None:
            StageForward(stage, way, self.options, stage.kind).take_over(stage)

    def _make_call(self, model: nn.Module) -> Callable[..., Any]:
        staged, run = weakref.proxy(self), own_function(own_forward)

        def cut(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return staged._cut(graph)  # type: ignore[no-any-return]

        call = torch.compile(run, backend=cut, fullgraph=True, dynamic=False)

        def without_logging(*args: Any, **kwargs: Any) -> Any:
            with dynamo.patch(ignore_logging_functions={*dynamo.ignore_logging_functions, *_LOGGING}):
                return call(*args, **kwargs)

        return without_logging

    def _cut(self, graph: fx.GraphModule) -> Callable[..., Any]:
        model = self._model()
        assert model is not None
        cuts = _Cuts(model, graph)
        whole = split_module(graph, nn.Module(), cuts.number, keep_original_order=True)
        self.stages = []
        for name, body in list(whole.named_children()):
            number = int(name.removeprefix("submod_"))
            kind = _kind(body)
            stage = Stage(cuts.paths[number], kind, self._bodies.setdefault(kind, body))
            self.stages.append(stage)
            self._set(stage)
            delattr(whole, name)
            setattr(whole, name, stage)
        return whole


_LOGGING = {f for name in dir(logging.Logger) if callable(f := getattr(logging.Logger, name)) and not name.startswith("__")}


class _Cuts:
    """Where the graph of a forward is cut. paths : of the stages, in their order."""

    def __init__(self, model: nn.Module, graph: fx.GraphModule):
        blocks = find_blocks(model)
        if not blocks and (chain := chain_of_leaves(model)) is not None:
            blocks = [*chain]
        inside = {id(b) for b in blocks}
        self._blocks = {name for name, m in model.named_modules() if id(m) in inside}
        self._of: dict[fx.Node, int] = {}
        nodes = [n for n in graph.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
        runs = self._runs(nodes)
        self.paths = self._named([block for block, _ in runs])
        for number, (_, inside_run) in enumerate(runs):
            self._of.update(dict.fromkeys(inside_run, number))

    def number(self, node: fx.Node) -> int:
        """The stage of a node."""
        return self._of[node]

    def _runs(self, nodes: Sequence[fx.Node]) -> list[tuple[str, list[fx.Node]]]:
        """(path of a block, or "" between blocks; nodes) of each stage."""
        runs: list[tuple[Any, list[fx.Node]]] = []
        for node in nodes:
            call = self._block(node)
            if not runs or runs[-1][0] != call:
                runs.append((call, []))
            runs[-1][1].append(node)
        joined: list[tuple[Any, list[fx.Node]]] = []
        for call, inside in runs:
            if joined and call is None and not _uses_weights(inside):
                joined[-1][1].extend(inside)
            elif joined and (joined[-1][0] is None and not _uses_weights(joined[-1][1]) or joined[-1][0] == call):
                joined[-1] = call, joined[-1][1] + inside
            else:
                joined.append((call, inside))
        return [("" if call is None else call[0], inside) for call, inside in _whole_results(joined)]

    def _block(self, node: fx.Node) -> tuple[str, str] | None:
        """(path, key of the call) of the block in which the node lies."""
        for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
            path = _NAME.sub(lambda m: f".{m[1] or m[2] or m[3]}", _SELF.sub("", path)).lstrip(".")
            path = path.replace("._modules.", ".").replace("_modules.", "", 1) if "_modules" in path else path
            if path in self._blocks:
                return path, key
        return None

    @staticmethod
    def _named(blocks: Sequence[str]) -> list[str]:
        names: list[str] = []
        for i, block in enumerate(blocks):
            following = next((b for b in blocks[i:] if b), "")
            name = block or (f"before {following}" if following else f"after {next((b for b in blocks[::-1] if b), 'all')}")
            times = sum(n == name or n.startswith(f"{name} #") for n in names)
            names.append(f"{name} #{times + 1}" if times else name)
        return names


def block_of(path: str) -> str:
    """The block by which a stage is named; "" where none is."""
    words = [w for w in path.split() if w not in ("before", "after", "all") and not w.startswith("#")]
    return words[-1] if words else ""


def _uses_weights(nodes: Sequence[fx.Node]) -> bool:
    return any(isinstance(x.meta.get("example_value"), nn.Parameter) for n in nodes for x in n.all_input_nodes)


def _whole_results(runs: Sequence[tuple[Any, list[fx.Node]]]) -> Iterator[tuple[Any, list[fx.Node]]]:
    """The runs, joined where a result that is no tensor would go from one to another."""
    at = {n: i for i, (_, nodes) in enumerate(runs) for n in nodes}
    last = list(range(len(runs)))
    for n, i in at.items():
        if not isinstance(n.meta.get("example_value"), torch.Tensor):
            last[i] = max([last[i], *(at[u] for u in n.users if u in at)])
    i = 0
    while i < len(runs):
        until, nodes, j = last[i], [*runs[i][1]], i
        while j < until:
            j += 1
            nodes += runs[j][1]
            until = max(until, last[j])
        yield runs[i][0], nodes
        i = j + 1


def _kind(body: fx.GraphModule) -> str:
    """A digest of the graph, of its inputs and of the state that shapes what is compiled."""
    text = repr((_lines(body), surroundings()))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGITS]


def _lines(body: fx.GraphModule) -> list[Any]:
    at: dict[fx.Node, int] = {}
    storages: dict[Any, int] = {}
    lines: list[Any] = []
    for i, n in enumerate(body.graph.nodes):
        at[n] = i
        if n.op == "placeholder":
            t = n.meta.get("example_value")
            told: Any = repr(t)
            if isinstance(t, torch.Tensor):
                shared = storages.setdefault(t.untyped_storage()._cdata, len(storages))
                told = type(t).__name__, tuple(t.shape), t.stride(), t.dtype, str(t.device), t.requires_grad, shared
            lines.append(told)
            continue
        target = n.target if isinstance(n.target, str) else f"{getattr(n.target, '__module__', '')}.{n.target!r}"
        if n.op == "get_attr":
            lines.append(_attribute(body, str(n.target)))
            continue
        if not isinstance(n.target, str) and not isinstance(n.target, torch._ops.OpOverload):
            target = f"{getattr(n.target, '__module__', '')}.{getattr(n.target, '__qualname__', n.target)}"
        lines.append((n.op, target, repr(fx.node.map_arg((n.args, n.kwargs), lambda x: _At(at[x])))))
    return lines


def _attribute(body: fx.GraphModule, name: str) -> Any:
    found: Any = body
    for part in name.split("."):
        found = getattr(found, part)
    if isinstance(found, fx.GraphModule):
        return _lines(found)
    if isinstance(found, torch.Tensor):
        return str(found.dtype), tuple(found.shape), hashlib.sha256(repr(found.tolist()).encode()).hexdigest()
    return repr(found)


class _At(int):
    """The number of a node, which no number in the arguments looks like."""

    def __repr__(self) -> str:
        return f"%{int(self)}"


def staged(model: nn.Module, options: CompileOptions) -> StagedForward:
    """The staged forward of a model, which planning and training share, so that it is traced once."""
    known = _staged.get(model)
    if known is None or known.options != options:
        known = _staged[model] = StagedForward(model, options)
    return known


_staged: weakref.WeakKeyDictionary[nn.Module, StagedForward] = weakref.WeakKeyDictionary()

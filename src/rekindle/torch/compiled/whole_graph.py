"""The stages of a model: its whole forward as torch.compile sees it, cut where its repeated blocks begin and end.

Much of what decides the peak of a language model is no module: its loss, masks and rotary tables lie in the model's own
forward. Dynamo's graph holds them. It is cut into stages at the boundaries of blocks, and each stage is compiled by itself, in
its own way. Autograd links the stages, so they need not form a chain: what a U-Net hands across is an output of one stage and
an input of another.

Results that the training loop does not read, as `unused` names them, are taken out of the graph. Dynamo's graph does not name
its outputs: the traced function passes each result to one of two functions, which Dynamo puts into the graph as they are.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import weakref
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from ...compiling import Compiled, CompileOptions
from ...errors import UsageError
from ..capture.left_out import no_such_results, taken_apart
from ..offload.part_copies import PartCopies
from ..run.own_forward import Tally
from ..tensors import tree
from .compiled_forward import CompiledForward, noting_looks, own_forward, own_function
from .compiler import while_tracing
from .cuts import Cuts, draws, is_fixed
from .stage import Stage, StageForward, kind_of

KINDS_MOST = 12  # different stages of a model; each takes 5 to 20 s to compile and measure, so more are joined; a guess
WHOLE = "all"  # the path of the one stage of a forward that is compiled in one piece


class StagedForward(CompiledForward):
    """A model's own forward, run in stages. Calls that Dynamo's guards have not seen are traced and cut anew.

    own : a forward in the model's `__dict__`, which no stage would run; None: it has its class's. unused : names of results
    that the training loop does not read; None stands in their place. in_one : the whole forward is one stage.
    """

    def __init__(
        self,
        model: nn.Module,
        options: CompileOptions,
        own: Callable[..., Any] | None,
        unused: Sequence[str] = (),
        in_one: bool = False,
    ):
        super().__init__(model, Compiled(), options, "", keeps_caches=True)  # the caller says whether caches are made
        self._own, self.unused, self.in_one = own, tuple(unused), in_one
        self.left_out = 0  # results that the last traced graph does not make
        self.graphs: list[str] = []  # a digest of how the stages are linked in each graph that was traced
        self._known: dict[tuple[str, str], Stage] = {}
        self._bodies: dict[str, fx.GraphModule] = {}
        self._noted: Callable[..., Any] | None = None
        self.run_by({})

    @property
    def stages(self) -> list[Stage]:
        """Those of all graphs that were traced, one for each kind of call."""
        return [*self._known.values()]

    def trains_in(self, mode: bool) -> None:
        """mode : `model.training` of the calls that run in stages."""
        self._training = mode

    def run_by(
        self,
        ways: Mapping[str, Compiled],
        planned: Collection[str] | None = None,
        copies_of: Callable[[str], PartCopies | None] = lambda _: None,
        tallies: dict[str, Tally] | None = None,
    ) -> None:
        """ways : path of a stage -> its way; others run uncompiled. planned : all stages that the plan knows; None: all that
        there are. One that it does not know, in a call of another kind, saves its inputs alone. copies_of : gives what copies
        for the stage of a path; None: nobody copies. tallies : count the calls of the stages, and of the model at ""."""
        self.ways, self._planned, self.copies_of = dict(ways), planned, copies_of
        self.tallies = {} if tallies is None else tallies
        self.tally = self.tallies.setdefault("", Tally())
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
            return
        way = self.ways.get(stage.path)
        if way is None and self._planned is not None and stage.path not in self._planned:
            way = Compiled("inputs")
            self._warned.warn(
                f"a call of {type(self._model()).__name__} runs in stages that its plan does not know: they save their inputs "
                "alone. Give rekindle.checkpoint a sample of such a call to plan it"
            )
        if way is not None:
            forward = StageForward(stage, way, self.options, stage.kind)
            forward.copies, forward.tally = self.copies_of(stage.path), self.tallies.setdefault(stage.path, Tally())
            forward.take_over(stage)

    def _make_call(self, model: nn.Module) -> Callable[..., Any]:
        staged = weakref.proxy(self)

        def cut(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
            return staged._cut(graph)  # type: ignore[no-any-return]

        run_it = marking(own_forward, self.unused) if self.unused else own_forward
        call = torch.compile(own_function(run_it), backend=cut, fullgraph=True, dynamic=False)

        def run(*args: Any, **kwargs: Any) -> Any:
            with while_tracing():
                result = call(*args, **kwargs)
            return result[0] if staged.unused else result

        return run

    def _cut(self, graph: fx.GraphModule) -> Callable[..., Any]:
        from torch.fx.passes.split_module import split_module

        model = self._model()
        assert model is not None
        if self.unused:
            self.left_out = leave_out(graph.graph)
        cuts, found = Cuts(model, graph), []
        if self.in_one:
            cuts.join_all(WHOLE)
        for _ in range(2):
            whole = split_module(graph, nn.Module(), cuts.number, keep_original_order=True)
            bodies = {k: m for k, m in whole.named_children() if isinstance(m, fx.GraphModule)}
            found = [kind_of(m) for m in bodies.values()]
            if len(set(found)) <= KINDS_MOST:
                break
            cuts.join(found, KINDS_MOST)
        for (name, body), kind in zip(bodies.items(), found, strict=True):
            path = cuts.paths[int(name.removeprefix("submod_"))]
            if (stage := self._known.get((path, kind))) is None:  # which another graph may share
                stage = self._known[path, kind] = Stage(path, kind, self._bodies.setdefault(kind, body))
                self._set(stage)
            delattr(whole, name)
            setattr(whole, name, stage)
        self.graphs.append(kind_of(whole))
        return functools.partial(noting_looks, whole, cuts.inner_results(graph))


def staged(
    model: nn.Module,
    options: CompileOptions,
    own: Callable[..., Any] | None,
    unused: Sequence[str] = (),
    in_one: bool = False,
) -> StagedForward:
    """The staged forward of a model, which planning and training share, so that it is traced once. Arguments as of
    `StagedForward`."""
    of_model = _staged.setdefault(model, {})
    known = of_model.get(in_one)
    if known is None or (known.options, known.unused) != (options, tuple(unused)) or own is not None:
        known = StagedForward(model, options, own, unused, in_one)
        if own is None:  # which may hold the model
            of_model[in_one] = known
    known.trains_in(model.training)
    return known


_staged: weakref.WeakKeyDictionary[nn.Module, dict[bool, StagedForward]] = weakref.WeakKeyDictionary()


@torch.compiler.allow_in_graph
def _read(t: torch.Tensor) -> torch.Tensor:
    """Mark a result that the loop reads."""
    return t.new_empty(0)


@torch.compiler.allow_in_graph
def _unread(t: torch.Tensor) -> torch.Tensor:
    """Mark a result that the loop does not read."""
    return t.new_empty(0)


def marking(forward: Callable[..., Any], unused: Sequence[str]) -> Callable[..., Any]:
    """The function of (module, *arguments), with a mark for each tensor of its result. unused : names of results."""

    def run(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
        result = forward(module, *args, **kwargs)
        marks: list[torch.Tensor] = []
        _mark(result, ("",), unused, False, marks)
        return result, marks

    return run


def _mark(x: Any, at: tuple[str, ...], unused: Sequence[str], is_unread: bool, marks: list[torch.Tensor]) -> None:
    """at : the names of the place of x in the result; a field of a named tuple has a name and a number."""
    is_unread = is_unread or any(name in unused for name in at)
    inside: list[tuple[tuple[str, ...], Any]] = []
    if isinstance(x, torch.Tensor):
        marks.append(_unread(x) if is_unread else _read(x))
    elif isinstance(x, Mapping):
        inside = [((f"{k}",), x[k]) for k in x]
    elif isinstance(x, tuple | list):
        fields = getattr(x, "_fields", ())
        inside = [((f"{i}", fields[i]) if i < len(fields) else (f"{i}",), y) for i, y in enumerate(x)]
    elif dataclasses.is_dataclass(x):
        inside = [((f.name,), getattr(x, f.name)) for f in dataclasses.fields(x)]
    for own, y in inside:
        _mark(y, tuple(f"{a}.{b}" if a else b for a in at for b in own), unused, is_unread, marks)


def leave_out(graph: fx.Graph) -> int:
    """Take the results out of the graph that are marked as not read, and the marks; gives how many results, inputs
    apart. One that also stands where the loop reads it stays."""
    marks: dict[Any, list[fx.Node]] = {_read: [], _unread: []}
    effects = {n for n in graph.nodes if not n.users}  # nobody reads them either, and they run: an assertion, say
    for node in graph.nodes:
        if node.op == "call_function" and node.target in marks:
            marks[node.target].append(node)
    of_read, of_unread = ({n.args[0] for n in marks[mark]} for mark in (_read, _unread))
    gone = of_unread - of_read
    every = gone | {n for found in marks.values() for n in found}
    output = graph.output_node()
    output.args = (tuple(None if x in every else x for x in output.args[0]),)  # type: ignore[union-attr]
    for node in reversed(graph.nodes):  # a softmax that nobody needs now would still read the logits
        computes = node.op in ("call_function", "call_method") and not (is_fixed(node) or draws(node))
        if computes and not node.users and node not in effects:
            graph.erase_node(node)
    return sum(isinstance(x, fx.Node) and x.op != "placeholder" for x in gone)


def count_unused(result: Any, given: Any, unused: Sequence[str], loss: str, module_name: str) -> list[weakref.ref[Any]]:
    """The tensors of a result that can be left out. given : those of the arguments and of the module, which always stay.

    Raises
    ------
    UsageError : a name fits no result, or is the loss's, or nothing is left from which a gradient could come back.
    """
    found = taken_apart(result, {}, unused, loss)
    if found.no_results:
        raise no_such_results(found.no_results, found.spec, module_name)
    stays = {id(t) for t in (*found.tensors, *given)}
    return [weakref.ref(t) for t in tree.tensors_in(result) if id(t) not in stays]


def cannot(unused: Sequence[str], why: str) -> UsageError:
    """The error for results that compiled stages cannot leave out."""
    return UsageError(
        f"unused={list(unused)}: compiled stages cannot leave these results out, as {why}. Leave out `unused`, or `compile`"
    )

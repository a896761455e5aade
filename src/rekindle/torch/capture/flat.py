"""The user's module as a function from tensors to tensors, which can be traced again and again."""

from __future__ import annotations

import contextlib
import types
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from ...ask import TraceOptions
from ...errors import TraceError
from ...printed import listed
from ...saying.frames import ChangeFinder, in_short, line_of, users_frame
from ..private import is_fake, mutations_of, place_of
from ..situation.callables import (
    caches_emptied,
    closure_of,
    described,
    is_torchs,
    line_that_sets,
    user_hooks,
    without_closure,
)
from ..situation.numbers import Argument, Numbers, name_of
from ..situation.surroundings import is_cast_once
from ..tensors import tree
from ..tensors.loss import losses
from ..tensors.objects import changeable
from ..undo.attributes import Attributes, Changes, Kind, kind_of, tensors_in_attributes
from .captured import Assigned
from .eager_kernels import EagerLayout, InTheirPlace, one_cast_each
from .inner_checkpoints import checkpoints_inside
from .inner_results import edges_behind, hooks_noted, inner_results, leads_to, mark
from .known_values import KnownValues, Question, indices_for_masks
from .left_out import taken_apart
from .stand_in import own_classes
from .trace_errors import lets_require_grad, moves


@dataclass(frozen=True)
class Inner:
    """A forward that torch.utils.checkpoint ran inside of the model's.

    line : the user's that called it. preserves : whether backward draws the same random numbers again. written : names of the
    module's tensors that it wrote to.
    """

    line: str
    preserves: bool
    written: list[str]


class FlatForward(nn.Module):
    """The user's module as a function from tensors to tensors.

    After each run it knows the structure of the result, and which attributes and arguments forward changed. It puts all
    attributes back.
    """

    def __init__(
        self,
        model: nn.Module,
        forward: Any,
        spec: Any,
        options: TraceOptions,
        sample: list[torch.Tensor],
        by_values: bool,
        numbers: Numbers | None = None,
    ):
        super().__init__()
        self.model = model
        self._sample = sample if by_values else None  # real inputs; None: their values are unknown
        # The real buffers, while others stand in their places.
        self._held = {k: t for k, t in tensors_in_attributes(model).items() if not is_fake(t)}
        # Parameters and buffers of classes and with attributes of their own, while others stand in their places.
        self._own = {k: t for k, t in _named(model).items() if not is_fake(t) and (vars(t) or type(t) not in _PLAIN)}
        self._markers = (numbers or Numbers()).markers
        self._forward, self._spec = forward, spec
        self._loss, self._unused, self.inside_autocast = options.loss, options.unused, options.inside
        # Name of each parameter, number of each input -> whether autocast casts it once; traced ones are no leaves.
        given: list[tuple[int | str, torch.Tensor]] = [*model.named_parameters(), *enumerate(sample)]
        self._once = {k: is_cast_once(t) for k, t in given if t.requires_grad and torch.is_autocast_cache_enabled()}
        # Of each parameter, by id; while tracing, each name is a tensor of its own.
        self._names: dict[int, list[str]] = {}
        for name, p in model.named_parameters(remove_duplicate=False):
            self._names.setdefault(id(p), []).append(name)
        self.output_spec: Any = None
        self.no_results: tuple[str, ...] = ()  # names in `unused` that fit no result of the last run
        self.aliased: dict[int, int | str] = {}
        self.ignored: dict[int, str] = {}
        self.inner: dict[int, int] = {}  # see `inner_results`
        self.retained: list[int] = []
        self.assigned: dict[str, Assigned] = {}
        self.kinds: dict[str, Kind] = {}  # of the tensors in `assigned`
        self.changes = Changes()  # of attributes, in the last run
        self.inside: list[torch.Tensor] = []  # tensors in attributes during the last run
        self.late: list[str] = []  # attributes that backward changed
        self.late_tensors: list[str] = []  # those of them that it set to tensors
        # Tables of the module's attributes, parameters and buffers, as the last run left them: backward finds them so.
        self._left: list[tuple[dict[str, Any], dict[str, Any]]] = []
        self._before_backward: dict[str, Any] = {}  # parameter or buffer -> its marks then
        self._ends: list[Any] = []  # the autograd nodes of the results of the last run
        self.checkpoints: list[Inner] = []  # of the last run
        self.functions: list[type[torch.autograd.Function]] = []  # the user's, to whose backward the last run leads
        self.hooks: list[Any] = []  # that it hung on tensors
        self.held: frozenset[int] = frozenset()  # as in `Captured`
        self.handed: list[str] = []
        self.progress = 0  # ops run, in all runs of the last attempt
        self.cast: dict[int | str, bool] = {}  # those that autocast has cast in the last run -> whether once
        self.unseen = 0  # calls of kernels with hidden writes, in the last run
        self.declares_writes = False  # whether such writes are made plain
        self.questions: list[Question] = []  # that forward asked about values of inputs, in the last run
        self.fills: list[tree.Branch] = []  # see `TakenApart`
        self.writes_to_constants = False  # forward or backward write to what they make of constants alone
        self.cached = False  # functions that keep their results kept tensors of a run
        self.moving: list[str] = []  # what a run before found that forward moves: the line is looked for
        self.goes_on = False  # a run starts with the attributes that the run before left, except tensors
        self.outside: dict[str, torch.Tensor] = {}  # tensors of no module, by the buffer that stands for each

    def __call__(self, *tensors: torch.Tensor) -> Any:
        """Call forward without hooks: global hooks are meant for the user's own modules."""
        return self.forward(*tensors)

    def forward(self, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        args, kwargs = tree.unflatten(list(tensors), self._spec)
        owned, self.checkpoints = {id(x.container): x for x in tree.owned(kwargs, self._spec.children[1])}, []
        state, layout, self.hooks = Attributes(self.model), EagerLayout(self.declares_writes), []
        standing = tensors_in_attributes(self.model)
        known = KnownValues(tensors, self._sample, standing, self._held, self._markers)
        try:
            with self._one_tensor_each(), own_classes(self._own, _named(self.model)):
                named: dict[Any, torch.Tensor] = {**dict(enumerate(tensors)), **dict(self.model.named_parameters())}
                casts = one_cast_each(named, self._once)
                watched, still = checkpoints_inside(self._inside_checkpoint), self._nothing_moved(tensors)
                masks, hung = indices_for_masks(known.count), hooks_noted(self.hooks, tensors, self._sample or tensors)
                outside = {id(t): (t, standing[name]) for name, t in self.outside.items()}
                instead = InTheirPlace(outside) if outside else contextlib.nullcontext()
                with casts as self.cast, layout, known, masks, watched, still, hung, instead:
                    made = taken_apart(self._forward(*args, **kwargs), owned, self._unused, self._loss)
                    self._refuse_new_parameters()
                    self._refuse_filled_marks()
                    self._left = [(x, dict(x)) for m in self.model.modules() for x in _tables(m)]
        except Exception:
            caches_emptied(self.model, everywhere=True)  # a tensor of another run may be what it failed on
            raise
        finally:
            self.unseen, self.questions = layout.unseen, known.questions
            self.progress += known.calls
            self.inside = list(tensors_in_attributes(self.model).values())
            self.changes = state.restore(only_tensors=self.goes_on)
            self.inside += tensors_in_attributes(self.model).values()
            self.cached = caches_emptied(self.model) or self.cached
        found, self.output_spec, self.fills, self.no_results, of_result = made
        if functions := _FUNCTIONS.intersection(tree.opaque_kinds(self.output_spec)):
            raise TraceError(
                f"forward returns a {' and a '.join(sorted(functions))}, which a planned step cannot make anew. Return tensors "
                "and plain values, keep it on the module, or name that result in unused if the loop does not read it",
                reason=f"returns a {' and a '.join(sorted(functions))}",
            )
        given: dict[int, int | str] = {
            id(t): k for k, t in [*self.model.named_parameters(), *self.model.named_buffers()]
        }
        given |= {id(t): i for i, t in enumerate(tensors)}
        self.aliased = {k: given[id(t)] for k, t in enumerate(found) if id(t) in given}
        returned = [t for k, t in enumerate(found) if k not in self.aliased]
        places = tree.paths(self.output_spec)
        for spec in self.fills:
            places = (
                tree.paths(spec, f"the argument {name_of(Argument(spec.place or ()), self._spec.children[1])}") | places
            )
        names = [places[k] for k in range(len(found)) if k not in self.aliased]
        results, own = len(returned), sum(k < of_result for k in range(len(found)) if k not in self.aliased)
        loss = losses(returned[:own], names) if self._loss == "auto" else []
        self.assigned = {}
        self.kinds = {k: kind_of(t) for k, t in self.changes.assigned.items()}
        for k, t in sorted(self.changes.assigned.items()):
            at = next((i for i, r in enumerate(returned) if r is t), len(returned))
            self.assigned[k] = Assigned(None, given[id(t)]) if id(t) in given else Assigned(at)
            if id(t) not in given and at == len(returned):
                returned.append(t)
                names.append(f"the attribute {k}")
        if any(id(t) in outside for t in returned):
            words = "returns a tensor to which it writes, and which is no buffer"
            raise TraceError(
                f"forward {words}: return a copy of it (clone()), or register it as a buffer", reason=words
            )
        self.ignored = {}
        for i, t in enumerate(returned):
            if t.requires_grad and self._loss == "auto" and (i >= results or loss and i < own and i not in loss):
                self.ignored[i] = names[i]
        self.inner = inner_results(returned, [t for i, t in enumerate(returned) if i not in self.ignored])
        self.retained = [i for i, t in enumerate(returned) if t.retains_grad]
        for i, uses in self.inner.items():
            ends = (*tensors, *self.model.parameters())
            if returned[i].is_leaf or i in self.retained and not leads_to(returned[i], ends):
                raise TraceError(
                    f"forward makes {names[i]} with requires_grad=True, returns it, and goes on from it: a planned step would "
                    "give it no gradient. Make it outside of forward and pass it in",
                    reason="returns a tensor that it makes with requires_grad=True",
                )
            mark(returned[i], i, uses)
        for i in self.ignored:
            returned[i] = returned[i].detach()
        # Copies, so that AOTAutograd does not see results that are views of each other; `joint_graph` drops the copies.
        copies = tuple([t.clone() for t in returned])
        self._before_backward, self._ends = self._marks(), [t.grad_fn for t in copies if t.grad_fn is not None]
        nodes, hidden = _behind(self._ends, {*given, *map(id, self.model.parameters())})
        self.functions = list(dict.fromkeys(n._forward_cls for n in nodes))
        left = [x for n in nodes for x in vars(n).values()] + [x for h in self.hooks for x in closure_of(h)]
        self.held = frozenset(changeable(left))
        self.handed = [k for k, x in kwargs.items() if self.held and not self.held.isdisjoint(changeable([x]))]
        # `backward()` runs code at such leaves, and a search for the gradients of others does not.
        if hidden and (nodes or self.hooks):
            trained = [t for t in copies if t.requires_grad]
            torch.autograd.grad(trained, hidden, [*map(torch.ones_like, trained)], retain_graph=True)
        for node in self._ends:
            node.register_prehook(self._begin_backward)
        return copies

    def _begin_backward(self, _: Any) -> None:
        """Backward begins: torch has taken the tensors of the trace out of the module, and code in backward may read them."""
        for table, held in self._left:
            table.update(held)
        self._left = []

    @property
    def in_backward(self) -> list[types.FunctionType]:
        """The user's functions that backward of the last run calls, without their closures, which hold its tensors."""
        of_modules = [fn for name, _, fn in user_hooks(self.model) if name.startswith("the backward")]
        called = [f for x in (*self.hooks, *of_modules, *(k.backward for k in self.functions)) for f in closure_of(x)]
        users = [f for f in called if isinstance(f, types.FunctionType) and not is_torchs(f)]
        return [without_closure(f.__code__, f.__globals__) for f in users]

    def _marks(self) -> dict[str, Any]:
        """name -> (the tensor, how often it was written to, its Python attributes, its gradient), of parameters and buffers."""
        named = [*self.model.named_parameters(), *self.model.named_buffers()]
        return {k: (t, mutations_of(t), set(vars(t)), t.grad) for k, t in named}

    def end_backward(self) -> tuple[list[str], list[str]]:
        """(what backward changed of the module's tensors beside the gradients that it returned, the user's autograd Functions
        that the last run called); autograd's graph of that run is let go of."""
        found: list[str] = []
        for k, (t, times, held, grad) in self._before_backward.items():
            found += [k] * (mutations_of(t) != times) + [f"{k}.grad"] * (t.grad is not grad)
            found += [f"{k}.{x}" for x in sorted({*vars(t)} - held)]
        functions = [
            f"the Function {described(kind.backward).replace('backward', kind.__name__, 1)}" for kind in self.functions
        ]
        self._before_backward, self._ends, self._left = {}, [], []
        return found, functions

    @contextlib.contextmanager
    def _inside_checkpoint(self, preserves: bool) -> Iterator[None]:
        """A forward that torch.utils.checkpoint runs, which is noted."""
        frame, before = users_frame(), self._times_written()
        try:
            yield
        finally:
            written = [k for k, times in self._times_written().items() if times != before.get(k, times)]
            self.checkpoints.append(Inner(line_of(frame) if frame is not None else "", preserves, written))

    def _times_written(self) -> dict[str, int]:
        return {k: mutations_of(t) for k, t in tensors_in_attributes(self.model).items()}

    @contextlib.contextmanager
    def _nothing_moved(self, given: tuple[torch.Tensor, ...]) -> Iterator[None]:
        """Raise TraceError if code inside gives a parameter or buffer another place, shape, flag or hook, or replaces a
        parameter, or lets an input require grad: a capture sees only numbers that are written."""
        tables = [(at, table) for at, m in self.model.named_modules() for table in _tables(m)[1:]]
        every = [(f"{at}.{k}".lstrip("."), table, k, t) for at, table in tables for k, t in table.items()]
        standing = [x for x in every if x[3] is not None and (not self.moving or x[0] in self.moving)]
        plain = {i: t for i, t in enumerate(given) if not t.requires_grad}
        parameters = {id(p) for p in self.model.parameters()}

        def look() -> list[Any]:
            flags = [i for i, t in plain.items() if t.requires_grad and t.is_leaf]  # a write makes it no leaf
            return [
                (place_of(t), id(table.get(k)) if id(t) in parameters else 0) for _, table, k, t in standing
            ] + flags

        before = look()
        finder = ChangeFinder(look) if self.moving else contextlib.nullcontext()
        with finder:
            yield
        moved = [x[0] for x, was, now in zip(standing, before, look(), strict=False) if was != now]
        line = finder.line if isinstance(finder, ChangeFinder) else ""
        if moved:
            self.moving = moved
            raise moves(self.model, moved, line)
        if flags := look()[len(standing) :]:
            places = tree.paths(self._spec.children[1], "")  # "['x']", "['batch'][0]"
            self.moving = [places[i][2:].replace("']", "", 1) for i in flags]
            raise lets_require_grad(self.moving, line)

    def _refuse_new_parameters(self) -> None:
        """Raise TraceError if forward has made parameters, which would be made anew in each planned step."""
        known = {name for names in self._names.values() for name in names}
        new = [k for k, _ in self.model.named_parameters(remove_duplicate=False) if k not in known]
        if new:
            at = new[0]  # the parameter, or the submodule that holds it
            while at and not (line := line_that_sets(self.model, at)):
                at = at.rpartition(".")[0]
            raise TraceError(
                f"forward makes the parameter{'s' * (len(new) > 1)} {listed(new)} itself{f' at {line}' if at else ''}, "
                "which a planned step cannot do. Make them in __init__; or, if only the first call makes them, call the model "
                "once before planning",
                line=in_short(line) if at else "",
                reason=f"makes the parameter {new[0]}",
            )

    def _refuse_filled_marks(self) -> None:
        """Raise TraceError if forward has put tensors into an object of the caller's that held none: it is a constant."""
        named = self._spec.children[1]
        for k, spec in zip(named.keys, named.children, strict=True):
            for x in tree.leaves(spec):
                if tree.is_plain_object(x) and tree.tensors_in(x):
                    raise TraceError(
                        f"forward puts tensors into the argument {k}, where {type(x).__name__} holds none before: a plan takes "
                        "it for a constant. Pass a dict, a dataclass or a SimpleNamespace for them, or return them",
                        reason=f"puts tensors into the argument {k}",
                    )

    @contextlib.contextmanager
    def _one_tensor_each(self) -> Iterator[None]:
        """Inside, a parameter with several names is one tensor, so that its gradients are added in eager's order."""
        standing = dict(self.model.named_parameters(remove_duplicate=False))
        swapped = []
        for first, *others in self._names.values():
            for name in others:
                path, _, leaf = name.rpartition(".")
                table = self.model.get_submodule(path)._parameters
                swapped.append((table, leaf, table[leaf]))
                table[leaf] = standing[first]  # type: ignore[assignment]
        try:
            yield
        finally:
            for table, leaf, t in reversed(swapped):
                table[leaf] = t


_FUNCTIONS = {"function", "method", "builtin_function_or_method", "partial", "type"}  # kinds of results


def _behind(nodes: list[Any], known: set[int]) -> tuple[list[Any], list[torch.Tensor]]:
    """(the nodes of the user's autograd Functions behind these, the leaves there whose ids are not `known`)."""
    every = dict.fromkeys([*nodes, *(edge[0] for *_, edge in edges_behind(nodes) if edge[0] is not None)])
    written = [n for n in every if isinstance(n, torch.autograd.function.BackwardCFunction)]
    leaves = [leaf for n in every if (leaf := getattr(n, "variable", None)) is not None and id(leaf) not in known]
    return [n for n in written if not is_torchs(n._forward_cls)], leaves  # type: ignore[attr-defined]


_PLAIN = (torch.Tensor, nn.Parameter)


def _named(model: nn.Module) -> dict[str, torch.Tensor]:
    return {**dict(model.named_parameters(remove_duplicate=False)), **dict(model.named_buffers(remove_duplicate=False))}


def _tables(m: nn.Module) -> tuple[dict[str, Any], ...]:
    """The tables in which a module holds its attributes, parameters and buffers."""
    return () if isinstance(m, torch.jit.ScriptModule) else (m.__dict__, m._parameters, m._buffers)


def by_parameter(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Arguments by parameter name, or by position for those without a name."""
    return {f"number {i + 1}": x for i, x in enumerate(args)} | kwargs

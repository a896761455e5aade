"""A module's forward that runs plans: one per call signature, the module's own forward where none applies."""

from __future__ import annotations

import contextlib
import itertools
import logging
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import PlanMismatch, TraceError, UsageError
from ..graph import Graph
from ..plan import Plan
from . import tree
from .execute import Runner
from .known import Question
from .program import build
from .trace import Key, Trace, module_kinds, signature, trace_call

log = logging.getLogger("rekindle")
NEW_SHAPE = ("plan", "plain", "error")
MOST = 8  # plans for one signature, each for other values of inputs; what comes then runs plain
Replan = Callable[[Trace, Plan], Plan]


class Bound:
    """A runner and where on the module its inputs are found."""

    def __init__(self, model: nn.Module, traced: Trace, plan: Plan):
        self.runner = Runner(traced.lowered, build(traced.lowered, plan.schedule))
        self.plan, self.trace = plan, traced
        self.modules = tuple(map(id, model.modules()))
        c = traced.lowered.captured
        self.questions, self.output_spec = c.questions, c.output_spec
        self.aliased = {k: _place(model, a) for k, a in c.aliased_inputs.items()}
        self.assigned = [(_owner(model, k), a.output, _place(model, a.source)) for k, a in c.assigned.items()]
        self.sources = [
            _owner(model, c.params.get(p) or c.buffers[p]) if p not in c.inputs else c.inputs[p]
            for p in self.runner.given
        ]

    def __call__(self, tensors: list[torch.Tensor]) -> Any:
        inputs = [_find(s, tensors) for s in self.sources]
        made = self.runner(inputs)
        for owner, output, source in self.assigned:
            setattr(*owner, _find(source, tensors) if output is None else made[output])
        in_order = iter(made)
        count = len(made) - sum(output is not None for _, output, _ in self.assigned) + len(self.aliased)
        results = [_find(self.aliased[k], tensors) if k in self.aliased else next(in_order) for k in range(count)]
        return tree.unflatten(results, self.output_spec)


Place = int | tuple[nn.Module, str]


def _answered(questions: list[Question], tensors: list[torch.Tensor]) -> bool:
    """Whether forward would get the same answers from these inputs."""
    return all(q.same(tensors) for q in questions)


def _find(place: Place, tensors: list[torch.Tensor]) -> Any:
    """The user's tensor of that index, or an attribute of a module."""
    return tensors[place] if isinstance(place, int) else getattr(*place)


def _place(model: nn.Module, source: int | str) -> Place:
    return source if isinstance(source, int) else _owner(model, source)


def _owner(model: nn.Module, name: str) -> tuple[nn.Module, str]:
    path, _, leaf = name.rpartition(".")
    return model.get_submodule(path), leaf


class PlannedForward:
    """What `apply` puts in the place of a module's forward.

    plain : the module's own forward.
    """

    def __init__(self, model: nn.Module, plan: Plan, on_new_shape: str, replan: Replan):
        if on_new_shape not in NEW_SHAPE:
            raise UsageError(f"on_new_shape={on_new_shape!r} is unknown; choose one of {', '.join(NEW_SHAPE)}")
        self._model = weakref.ref(model)  # the module holds this object; the other way would make a cycle
        own = model.__dict__.get("forward")
        self._own: Callable[..., Any] | None = own._own if isinstance(own, PlannedForward) else own
        self.plan, self.on_new_shape, self._replan = plan, on_new_shape, replan
        # by signature, and each for other answers to what forward asks about the values of its inputs
        self._bound: dict[Key, list[Bound]] = {}
        self._unlike_file: list[tuple[Any, list[Question]]] = []  # calls that a plan from a file is not for
        self._left_plain = False
        self._pending = plan.trace is None
        self.last: Bound | None = None
        if plan.trace is not None:
            _check_same_module(model, plan.trace)
            self._bind(model, plan.trace, plan)

    def take_over(self, model: nn.Module) -> None:
        """Become the module's forward."""
        model.__dict__["forward"] = self

    def give_back(self, model: nn.Module) -> None:
        """Put the module's own forward back."""
        del model.__dict__["forward"]
        if self._own is not None:
            model.__dict__["forward"] = self._own

    @property
    def source(self) -> str:
        """Python source of the program that ran last, or will run first; "" while a plan from a file waits for a call."""
        bound = self.last or next(itertools.chain(*self._bound.values()), None)
        return "" if bound is None else bound.runner.program.source

    @property
    def plain(self) -> Callable[..., Any]:
        model = self._model()
        assert model is not None
        return self._own if self._own is not None else type(model).forward.__get__(model)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            return self.plain(*args, **kwargs)
        model = self._model()
        assert model is not None
        tensors, spec = tree.flatten((args, kwargs))
        key = signature(model, tensors, spec)
        bound = self._planned_for(key, tensors)
        if bound is not None and bound.modules != tuple(map(id, model.modules())):
            bound = self._submodule_exchanged(model, key, tensors, bound, args, kwargs)
        elif bound is None and model.training:
            bound = self._new_call(model, key, tensors, args, kwargs)
        if bound is None:
            return self.plain(*args, **kwargs)
        self.last = bound
        return bound(tensors)

    def _planned_for(self, key: Key, tensors: list[torch.Tensor]) -> Bound | None:
        return next((b for b in self._bound.get(key, ()) if _answered(b.questions, tensors)), None)

    def _new_call(
        self, model: nn.Module, key: Key, tensors: list[torch.Tensor], args: Any, kwargs: Any
    ) -> Bound | None:
        """A plan for a call that none is for; None: it runs plain."""
        found = None
        call = key, tuple(map(id, model.modules()))
        if self._pending and not any(call == c and _answered(asked, tensors) for c, asked in self._unlike_file):
            found, like = self._alike(model, args, kwargs, self.plan.graph_hash)
            if like is not None:
                self._pending = False
                return self._bind(model, like, self.plan)
            asked = found.lowered.captured.questions
            if not asked or self.on_new_shape == "error":
                raise PlanMismatch(mismatch(self.plan.graph, found.graph))
            # The plan may be for other answers: it waits for a call that gives them.
            self._unlike_file.append((call, asked))
        known = len(self._bound.get(key, ()))
        shapes = ", ".join(str(list(s[0])) for s in key[0])
        what = f"{type(model).__name__} was called with inputs {shapes}"
        if self.on_new_shape == "error":
            also = "whose values lead forward elsewhere," if known else "(or modes, dtypes, constants)"
            raise PlanMismatch(
                f"{what} {also} for which there is no plan; plan for them, or apply with on_new_shape='plan' or 'plain'"
            )
        if self.on_new_shape == "plain" or known >= MOST:
            if not self._left_plain:
                warnings.warn(f"{what} for which there is no plan; such calls run plain, with nothing recomputed",
                              stacklevel=5)  # fmt: skip
            self._left_plain = True
            return None
        log.info("planning %s anew for inputs %s", type(model).__name__, shapes)
        found = found or self._trace(model, args, kwargs)
        return self._bind(model, found, self._replan(found, self.plan))

    def _submodule_exchanged(
        self, model: nn.Module, key: Key, tensors: list[torch.Tensor], bound: Bound, args: Any, kwargs: Any
    ) -> Bound | None:
        """The plan serves on where the graph is still the same."""
        self._bound[key].remove(bound)
        with contextlib.suppress(TraceError):  # a new call, then: it may run plain
            _, like = self._alike(model, args, kwargs, bound.plan.graph_hash)
            if like is not None:
                return self._bind(model, like, bound.plan)
        return self._new_call(model, key, tensors, args, kwargs)

    def _alike(self, model: nn.Module, args: Any, kwargs: Any, graph_hash: str) -> tuple[Trace, Trace | None]:
        """The call's trace, and the one whose graph has that hash: the same, or where forward asks for values of inputs, the
        one without them, as on fake tensors; None: neither."""
        found = self._trace(model, args, kwargs)
        if found.graph.hash == graph_hash:
            return found, found
        if found.lowered.captured.questions:
            with contextlib.suppress(TraceError):
                general = self._trace(model, args, kwargs, by_values=False)
                if general.graph.hash == graph_hash:
                    return found, general
        return found, None

    def _trace(self, model: nn.Module, args: Any, kwargs: Any, by_values: bool = True) -> Trace:
        like = self.plan.trace
        how = {} if like is None else {"loss": like.loss, "target": like.target, "must_save": like.must_save}
        return trace_call(model, args, kwargs, by_values=by_values, **how)

    def _bind(self, model: nn.Module, traced: Trace, plan: Plan) -> Bound:
        dropped = tree.opaque_kinds(traced.lowered.captured.output_spec)
        if dropped:
            log.warning(
                "results of type %s hold state for later calls, not gradients; planned calls return None in their place",
                ", ".join(sorted(set(dropped))),
            )
        bound = Bound(model, traced, plan)
        self._bound.setdefault(traced.signature, []).append(bound)
        return bound

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedForward:
        """The copied module gets its own planned forward."""
        model = self._model()
        twin = memo.get(id(model))
        copied = object.__new__(PlannedForward)
        copied.__dict__.update(self.__dict__)
        copied._bound, copied._unlike_file, copied.last = {}, [], None
        if twin is not None:
            copied._model = weakref.ref(twin)
            copied._rebind = list(itertools.chain(*self._bound.values()))  # type: ignore[attr-defined]
            copied.__class__ = _Copied
        return copied

    def __reduce__(self) -> Any:
        raise pickle.PicklingError(
            "a planned module cannot be pickled; call rekindle.restore(model) first, or save model.state_dict()"
        )


class _Copied(PlannedForward):
    """A planned forward right after deepcopy: the copy's submodules exist only once the copying is over."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        assert model is not None
        self.__class__ = PlannedForward  # type: ignore[assignment]
        for b in self.__dict__.pop("_rebind"):
            self._bound.setdefault(b.trace.signature, []).append(Bound(model, b.trace, b.plan))
        return self(*args, **kwargs)


def _check_same_module(model: nn.Module, traced: Trace) -> None:
    c = traced.lowered.captured
    state = dict(model.named_parameters(remove_duplicate=False)) | dict(model.named_buffers(remove_duplicate=False))
    for p, name in c.params.items():
        t = state.get(name)
        if t is None or t.shape != p.meta["val"].shape:
            has = "lacks it" if t is None else f"has {list(t.shape)}"
            raise PlanMismatch(
                f"the plan was made for {traced.module_name} (graph {traced.graph.hash[:12]}), whose parameter {name} is "
                f"{list(p.meta['val'].shape)}; this {type(model).__name__} {has}. Plan this module itself"
            )
    kinds = module_kinds(model)
    if kinds != traced.module_kinds:
        pairs = itertools.zip_longest(traced.module_kinds, kinds, fillvalue=("", "nothing"))
        (_, planned), (name, found) = next((a, b) for a, b in pairs if a != b)
        raise PlanMismatch(
            f"the plan was made for {traced.module_name} (graph {traced.graph.hash[:12]}), which has a {planned} where this "
            f"{type(model).__name__} has {found}{f' ({name})' if name else ''}. Plan this module itself"
        )


def mismatch(planned: Graph, found: Graph) -> str:
    """Both fingerprints and the first difference."""
    for i, (a, b) in enumerate(zip(planned.ops, found.ops, strict=False)):
        if a.name != b.name:
            where = f"op {i} is {b.name!r}, the plan has {a.name!r}"
            break
        if (a.inputs, a.outputs) != (b.inputs, b.outputs):
            where = f"op {i} ({a.name}) reads or makes other values"
            break
    else:
        sizes = [i for i, (a, b) in enumerate(zip(planned.values, found.values, strict=False)) if a != b]
        where = (
            f"the model has {len(found.ops)} ops, the plan {len(planned.ops)}" if len(found.ops) != len(planned.ops)
            else f"value {sizes[0]} has {found.values[sizes[0]].bytes} bytes, in the plan {planned.values[sizes[0]].bytes}"
            if sizes else "the ops may be run again or kept under other rules"
        )  # fmt: skip
    return (
        f"the plan is for graph {planned.hash[:12]}, but this call gives graph {found.hash[:12]}; first difference: {where}. "
        "Call the model with what it was planned for (batch size, shapes, dtypes, modes, masks), or make a new plan"
    )

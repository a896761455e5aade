"""A module's forward that runs plans: one per call signature, the module's own forward where none applies."""

from __future__ import annotations

import itertools
import logging
import pickle
import warnings
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ..errors import PlanMismatch, UsageError
from ..graph import Graph
from ..plan import Plan
from . import tree
from .execute import Runner
from .program import build
from .trace import Key, Trace, module_kinds, signature, trace_call

log = logging.getLogger("rekindle")
NEW_SHAPE = ("plan", "plain", "error")
Replan = Callable[[Trace, Plan], Plan]


class Bound:
    """A runner and where on the module its inputs are found."""

    def __init__(self, model: nn.Module, traced: Trace, plan: Plan):
        self.runner = Runner(traced.lowered, build(traced.lowered, plan.schedule))
        self.plan, self.trace = plan, traced
        self.modules = tuple(map(id, model.modules()))
        c = traced.lowered.captured
        self.output_spec = c.output_spec
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
        self._bound: dict[Key, Bound | None] = {}
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
        bound = self.last or next((b for b in self._bound.values() if b is not None), None)
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
        if key not in self._bound:
            if not model.training:
                return self.plain(*args, **kwargs)
            self._new_signature(model, key, args, kwargs)
        bound = self._bound[key]
        if bound is None:
            return self.plain(*args, **kwargs)
        if bound.modules != tuple(map(id, model.modules())):
            self._submodule_exchanged(model, key, bound, args, kwargs)
            return self(*args, **kwargs)
        self.last = bound
        return bound(tensors)

    def _new_signature(self, model: nn.Module, key: Key, args: Any, kwargs: Any) -> None:
        if self._pending:
            found = self._trace(model, args, kwargs)
            if found.graph.hash != self.plan.graph_hash:
                raise PlanMismatch(mismatch(self.plan.graph, found.graph))
            self._bind(model, found, self.plan)
            self._pending = False
            return
        shapes = ", ".join(str(list(s[0])) for s in key[0])
        if self.on_new_shape == "error":
            raise PlanMismatch(
                f"{type(model).__name__} was called with inputs {shapes} (or modes, dtypes, constants) for which there is "
                "no plan; plan for them, or apply with on_new_shape='plan' or 'plain'"
            )
        if self.on_new_shape == "plain":
            if None not in self._bound.values():
                warnings.warn(
                    f"{type(model).__name__} was called with inputs {shapes} for which there is no plan; such calls run "
                    "plain, with nothing recomputed", stacklevel=4,
                )  # fmt: skip
            self._bound[key] = None
            return
        log.info("planning %s anew for inputs %s", type(model).__name__, shapes)
        found = self._trace(model, args, kwargs)
        self._bind(model, found, self._replan(found, self.plan))

    def _submodule_exchanged(self, model: nn.Module, key: Key, bound: Bound, args: Any, kwargs: Any) -> None:
        """The plan serves on where the graph is still the same."""
        found = self._trace(model, args, kwargs)
        if found.graph.hash == bound.plan.graph_hash:
            self._bind(model, found, bound.plan)
        else:
            del self._bound[key]
            self._new_signature(model, key, args, kwargs)

    def _trace(self, model: nn.Module, args: Any, kwargs: Any) -> Trace:
        like = self.plan.trace
        if like is None:
            return trace_call(model, args, kwargs)
        return trace_call(model, args, kwargs, loss=like.loss, target=like.target, must_save=like.must_save)

    def _bind(self, model: nn.Module, traced: Trace, plan: Plan) -> None:
        dropped = tree.opaque_kinds(traced.lowered.captured.output_spec)
        if dropped:
            log.warning(
                "results of type %s hold state for later calls, not gradients; planned calls return None in their place",
                ", ".join(sorted(set(dropped))),
            )
        self._bound[traced.signature] = Bound(model, traced, plan)

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedForward:
        """The copied module gets its own planned forward."""
        model = self._model()
        twin = memo.get(id(model))
        copied = object.__new__(PlannedForward)
        copied.__dict__.update(self.__dict__)
        copied._bound, copied.last = {}, None
        if twin is not None:
            copied._model = weakref.ref(twin)
            copied._rebind = list(b for b in self._bound.values() if b is not None)  # type: ignore[attr-defined]
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
            self._bound[b.trace.signature] = Bound(model, b.trace, b.plan)
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
        "Call the model with what it was planned for (batch size, shapes, dtypes, modes), or make a new plan"
    )

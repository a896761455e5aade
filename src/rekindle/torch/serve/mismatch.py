"""Compares a plan with a module or a graph, and says in words how they differ."""

from __future__ import annotations

from torch import nn

from ...errors import PlanMismatch
from ...model.graph import Graph
from ...model.op_names import op_words
from ...printed import name as printed
from ..trace import Trace, module_kinds


def check_same_module(model: nn.Module, traced: Trace) -> None:
    """Check that the plan's trace fits the module.

    Raises
    ------
    PlanMismatch : the module lacks a parameter of the one that was traced, or has other submodules.
    """
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
    planned, now = dict(traced.module_kinds), dict(module_kinds(model))
    if [*planned.items()] != [*now.items()]:
        name = next((k for k in {**planned, **now} if planned.get(k) != now.get(k)), "")
        own, has = planned.get(name), f"has {now.get(name, 'none')} there"
        which = f"whose submodule {name!r} is {own}" if own else f"which has no submodule {name!r}"
        if not name:
            which, has = f"a module of class {own}", f"is of class {now['']}, or has its submodules in another order"
        raise PlanMismatch(
            f"the plan was made for {traced.module_name} (graph {traced.graph.hash[:12]}), {which}; this "
            f"{type(model).__name__} {has}. Plan this module itself"
        )


def mismatch(planned: Graph, found: Graph) -> str:
    """The message of a PlanMismatch: both fingerprints and the first difference."""
    for i, (a, b) in enumerate(zip(planned.ops, found.ops, strict=False)):
        if a.name != b.name:
            one, other = op_words(b), op_words(a)
            if one == other:  # words leave out the overload, say
                one, other = printed(b.name), printed(a.name)
            where = f"op {i} is '{one}', the plan has '{other}'"
            break
        if (a.inputs, a.outputs) != (b.inputs, b.outputs):
            where = f"op {i}, {op_words(a)}, reads or makes other values"
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
        "Call the model with what it was planned for (batch size, shapes, dtypes, modes, masks), or make a new plan. Where the "
        "same call gives another graph in each process, the model's code may loop over a set: set PYTHONHASHSEED=0 for both"
    )

"""Finds the parts of a model that are compiled, and tells which of them can share what is compiled.

Parts are the stages of the model's forward, or else its repeated blocks and the largest submodules around them. Submodules
share compiled code if they have the same classes, shapes and inputs, and forward reads equal attributes: Dynamo compiles anew
where an attribute that forward reads has another value (a rate of dropout, an activation function), and not where one that it
does not read has (the number of a layer).
"""

from __future__ import annotations

import gc
import hashlib
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import nn

from ...ask import TraceOptions
from ...compiling import CompileOptions
from ...errors import TraceError, UsageError
from ...printed import first_line
from ...saying.progress import Progress, announce
from ..compiled.compiled_forward import not_compiled
from ..compiled.cuts import chain_of_leaves, find_blocks
from ..compiled.stage import Stage
from ..compiled.whole_graph import cannot, count_unused, staged
from ..measure.as_before import nothing_saved
from ..measure.measured_step import Subject
from ..measure.recording import Calls, Recorded, as_recorded, record, signature
from ..run.sample import owned
from ..situation.guards import Reads
from ..situation.module_call import Key, bind
from ..tensors import tree
from ..tensors.sharded import any_fully_sharded, class_name
from ..trace import plain_forward
from .finding import Found, Unit
from .trial_steps import TrialSteps

DIGITS = 16  # of the digest that names a kind
ITSELF = "forward itself takes gradients"


def find(s: Subject, named: Sequence[str] | None, how: TraceOptions, progress: Progress) -> Found:
    """The parts, in order of first calls. named : paths of the submodules that the user names; None: they are found.

    Raises
    ------
    UsageError : a named submodule is not called by the step, or `s.unused` names no result.
    """
    is_sharded, unused, why = any_fully_sharded(s.model), _unused(s, how.loss), ""
    if named is None and not is_sharded:
        try:
            return _stages(s, how.compile or CompileOptions(), unused, progress)
        except (UsageError, torch.OutOfMemoryError):
            raise
        except Exception as e:  # Dynamo's errors have no common class
            why = first_line(e) or type(e).__name__
    announce(progress, f"running {class_name(s.model)} once, to see how its submodules are called")
    calls = record(s)
    paths = _paths(s.model, calls) if named is None else list(named)
    found = Found()
    if named is None:
        why = "the model is sharded" if is_sharded else f"torch.compile cannot take the whole forward ({why[:120]})"
        found.plain.append(f"the code around them, as {why}")
    for path in named or ():
        if path not in calls or not calls[path].samples:
            raise UsageError(f"parts: {path!r} is not called by the step, and so cannot be measured; leave it out")
    for path, known in calls.items():  # in order of first calls
        if path not in paths or not known.samples:
            continue
        if len(known.samples) > 1:
            found.plain.append(f"{class_name(s.model.get_submodule(path))} (is called with inputs of several kinds)")
            continue
        given = next(iter(known.samples.values()))
        module = s.model.get_submodule(path)
        if any(p.requires_grad for p in module.parameters()) or any(t.requires_grad for t in given.call.tensors):
            found.units.append(Unit(path, module, given.key, len(known.keys), given))
    for u in [*found.units]:  # compiled code calls no other part; a submodule with two parents may be one
        inside = {*u.module.modules()}
        if inner := next((v.path for v in found.units if v is not u and v.module in inside), ""):
            found.units.remove(u)
            found.plain.append(f"{class_name(u.module)} (calls {inner}, which is a part by itself)")
    return found


def in_one_piece(s: Subject, how: TraceOptions, progress: Progress) -> Found:
    """The whole forward as one part. Raises what Dynamo raises."""
    return _stages(s, how.compile or CompileOptions(), _unused(s, how.loss), progress, in_one=True)


def _stages(s: Subject, options: CompileOptions, unused: int, progress: Progress, in_one: bool = False) -> Found:
    """The stages of the forward. unused : how many of its tensors nobody reads. Raises what Dynamo raises."""
    announce(progress, f"tracing {class_name(s.model)} by torch.compile, to cut its forward into stages")
    if why := not_compiled(s.model, vars(s.model).get("forward")):
        raise TraceError(f"{class_name(s.model)} {why}")
    forward = staged(s.model, options, None, s.unused, in_one)
    parameters, buffers = {id(p) for p in s.model.parameters()}, {id(b) for b in s.model.buffers()}
    seen: list[tuple[Stage, Recorded]] = []
    known: dict[tuple[str, Key], Recorded] = {}

    def noted(stage: Stage, *tensors: torch.Tensor) -> Any:
        stage.weighs(*([i for i, t in enumerate(tensors) if id(t) in some] for some in (parameters, buffers)))
        call = bind(plain_forward(stage), tensors, {})
        if (found := (stage.kind, call.key)) not in known:
            with stage.owning(tensors):
                known[found] = as_recorded(call, call.key, owned(stage))
        seen.append((stage, known[found]))
        return Stage.forward(stage, *tensors)

    args, kwargs, _ = s.sample.fresh()
    with forward.calls_noted(noted), nothing_saved(TraceError(ITSELF)):
        forward.raises = True
        try:
            forward(*args, **kwargs)
        finally:
            forward.raises = False
    units = [
        Unit(stage.path, stage, given.key, 1, given)
        for stage, given in seen
        if any(t.requires_grad for t in given.call.tensors)
    ]
    if not units:
        raise TraceError("nothing is trained")
    if forward.left_out != unused:
        raise cannot(
            s.unused, f"the traced forward makes {unused} tensors of that name, and leaves out {forward.left_out}"
        )
    return Found(units, staged=forward, stages=tuple(dict.fromkeys(stage.path for stage, _ in seen)))


def _unused(s: Subject, loss: str) -> int:
    """How many tensors of the result the training loop does not read.

    Raises
    ------
    UsageError : as `count_unused`, or the model keeps such a tensor elsewhere.
    """
    if not s.unused:
        return 0
    args, kwargs, tensors = s.sample.fresh()
    try:
        with nothing_saved(TraceError(ITSELF)):
            result = plain_forward(s.model)(*args, **kwargs)
    except TraceError:  # no stage takes such a forward, and parts make all results
        return 0
    state = [*tensors, *s.model.parameters(), *s.model.buffers()]
    found = count_unused(result, state, s.unused, loss, class_name(s.model))
    del result
    gc.collect()
    if any(t() is not None for t in found):
        raise cannot(s.unused, "the model keeps one of them, in an attribute or in a container of the caller's")
    return len(found)


def _paths(model: nn.Module, calls: dict[str, Calls]) -> list[str]:
    """Paths of the blocks, and of the largest called submodules that hold no block."""
    blocks = find_blocks(model)
    if not blocks and (chain := chain_of_leaves(model)) is not None:
        blocks = [chain]
    inside = {id(m) for b in blocks for m in b.modules()}
    around = {id(m) for m in model.modules() if any(id(x) in inside for x in m.modules())} - inside
    path_of = {id(m): name for name, m in model.named_modules()}
    return [path_of[id(m)] for m in _largest(model, {id(b) for b in blocks}, around, calls, path_of) if path_of[id(m)]]


def _largest(
    m: nn.Module, blocks: set[int], around: set[int], calls: dict[str, Calls], path_of: dict[int, str]
) -> Iterator[nn.Module]:
    for child in m.children():
        is_called = path_of[id(child)] in calls
        if id(child) in blocks or (id(child) not in around and is_called):
            yield child
        else:
            yield from _largest(child, blocks, around, calls, path_of)


# -- kinds of submodules -------------------------------------------------------------------------------------------------
class Kinds:
    """Tells the kinds of parts. One plain forward of each class and shape says which attributes are read."""

    def __init__(self) -> None:
        self._read: dict[Any, dict[str, set[str]]] = {}

    def of(self, unit: Unit) -> str:
        """Equal for parts that can share what is compiled and measured. Raises what forward raises."""
        same = signature(unit.module), unit.key
        if same not in self._read:
            reads = Reads()
            with TrialSteps(unit, torch.device("cpu")).ready() as trial:
                reads.recorded(plain_forward(unit.module))(*trial.args, **trial.kwargs)
            self._read[same] = reads.by_path(unit.module)
        settings = [
            (path, name, described(vars(m).get(name)))
            for path, m in unit.module.named_modules()
            for name in sorted(self._read[same].get(path, ()))
        ]
        return hashlib.sha256(repr((same, settings)).encode()).hexdigest()[:DIGITS]


def described(x: Any) -> str:
    """A setting in words that are the same in every process; "" for what guards or shapes tell of."""
    if isinstance(x, torch.Tensor | nn.Module):
        return ""
    if isinstance(x, tree.PLAIN):
        return repr(x)
    if isinstance(x, list | tuple):
        return repr([described(y) for y in x])
    name = getattr(x, "__qualname__", None)
    if name is not None:
        return f"{getattr(x, '__module__', '')}.{name}"
    held = getattr(x, "__dict__", {})
    return f"{type(x).__qualname__} {sorted((k, repr(y)) for k, y in held.items() if isinstance(y, tree.PLAIN))}"

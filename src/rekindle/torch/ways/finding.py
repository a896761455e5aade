"""Finds the largest submodules that can be captured, from the top down."""

from __future__ import annotations

import os
import traceback
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from types import FrameType
from typing import Any

from torch import nn

from ...ask import PlanOptions, TraceOptions
from ...errors import RekindleError, RekindleWarning, TraceError, UsageError
from ...printed import listed
from ...saying.frames import is_users
from ...saying.progress import announce
from .. import accept
from ..capture.trace_errors import NO_BACKWARD, READS, SHAPE_FROM_DATA, TAKES_FUNCTIONS
from ..compiled.stage import Stage
from ..compiled.whole_graph import StagedForward
from ..measure.measured_step import Subject
from ..measure.recording import Calls, Recorded, bytes_of, hooks_in, may_be_part, record, signature
from ..situation.module_call import Key
from ..situation.module_paths import is_marked
from ..tensors.sharded import class_name, inside
from ..trace import Trace, trace_call
from ..undo.side_effects import ARGUMENT
from .again import WRITES, more_than_computes
from .varying import Varying


@dataclass
class Unit:
    """One submodule in one kind of call, which gets a plan of its own.

    path, module : the submodule. key : of its calls. calls : how often it is called in the step; 0: an equal module is called,
    and another step may call this one (LayerDrop). trace : shared by modules that are in the same state. kind : of a compiled
    part, as `Kinds` has it.
    """

    path: str
    module: nn.Module
    key: Key
    calls: int
    given: Recorded
    trace: Trace | None = None
    kind: str = ""

    @property
    def input_bytes(self) -> int:
        """Bytes of the tensors that such a call is given."""
        return bytes_of(self.given.call.tensors)

    @property
    def name(self) -> str:
        """The class of the submodule, or the path of the stage, for messages."""
        return self.path if isinstance(self.module, Stage) else class_name(self.module)

    def is_inside(self, other: str) -> bool:
        """Whether the submodule lies in the one of that path."""
        return self.path.startswith(f"{other}.")


@dataclass
class Found:
    """The parts of a model.

    units : in order of first calls. plain : what runs as it is and why, such as "OPTDecoder (modeling_opt.py:612 …)".
    staged : the model's forward, whose stages the units are; None: they are its submodules. stages : paths of all stages.
    """

    units: list[Unit] = field(default_factory=list)
    plain: list[str] = field(default_factory=list)
    staged: StagedForward | None = None
    stages: tuple[str, ...] = ()


class Finder:
    """Looks for the parts of one model.

    named : paths of the submodules that the user names; None: every submodule may be a part.
    """

    def __init__(
        self,
        s: Subject,
        options: PlanOptions,
        captured: TraceOptions,
        named: Sequence[str] | None,
        error: TraceError | None,
    ):
        self.s, self.options, self.captured, self.named = s, options, captured, named
        self.found = Found()
        self._calls: dict[str, Calls] = {}
        self._varying = Varying(s, {})
        self._failed: dict[Any, RekindleError] = {}  # (signature, keys) -> why a module like this cannot be captured
        self._open: set[nn.Module] = {s.model}
        # (signature, key) -> traces of modules like this, in different states
        self._traces: dict[Any, list[Trace]] = {}
        self._why: dict[str, RekindleError] = {}
        self._signatures: dict[nn.Module, Any] = {}  # that were asked for
        self._varying_parts: list[tuple[str, nn.Module]] = []  # submodules whose shapes depend on the data
        # Submodules that are called and cannot be captured, innermost first.
        self._opened: list[tuple[str, nn.Module]] = []
        if error is not None:
            self._note_failure("", s.model, error)

    def find(self) -> Found:
        """The parts.

        Raises
        ------
        TraceError, UsageError : a submodule that the user names cannot be a part.
        """
        announce(
            self.options.progress, f"running {class_name(self.s.model)} once, to see how its submodules are called"
        )
        self._calls = record(self.s)
        self._varying = Varying(self.s, self._calls)
        if self.named is None:
            self._look_into("", self.s.model)
        else:
            for path in self.named:
                self._named(path)
        self._add_uncalled()
        if self.named is None:
            self._add_again()
        order = {path: i for i, path in enumerate(self._calls)}
        self.found.units.sort(key=lambda u: order.get(u.path, len(order)))
        return self.found

    def _look_into(self, path: str, module: nn.Module) -> None:
        """Look for parts among the submodules."""
        for name, child in module.named_children():
            inner = f"{path}.{name}" if path else name
            if not self._is_part(inner, child):
                self._look_into(inner, child)
                if inner in self._calls and may_be_part(child):
                    self._opened.append((inner, child))

    def _signature(self, module: nn.Module) -> Any:
        if module not in self._signatures:
            self._signatures[module] = signature(module)
        return self._signatures[module]

    def _named(self, path: str) -> None:
        module = self.s.model.get_submodule(path)
        if path not in self._calls:
            return  # perhaps a module like it is called
        if not self._is_part(path, module, asked=True):
            why = self._why.get(path)
            raise TraceError(f"parts: {path!r} cannot be planned: {why or 'a plan would save nothing there'}") from None

    def _is_part(self, path: str, module: nn.Module, asked: bool = False) -> bool:
        """Whether the submodule was captured; then its units are noted."""
        calls = self._calls.get(path)
        if calls is None or not calls.samples or module in self._open:
            return False
        if is_marked(path, self.captured.must_save) or not (may_be_part(module) or asked):
            return False
        if inside(module):
            self._why[path] = UsageError(
                "fully_shard was called for its submodules, and their parameters are whole only while they run; name these "
                "submodules"
            )
            return False
        if not any(p.requires_grad for p in module.parameters()) and not self._inputs_train(calls):
            return False
        kind = self._signature(module)
        known = (kind, *calls.samples)
        if known in self._failed:
            self._why[path] = self._failed[known]
            return False
        if not asked and self._varies(path, kind):
            self._varying_parts.append((path, module))
            return True  # its submodules' shapes do too
        try:
            units = [self._unit(path, module, kind, calls.samples[key], calls.keys.count(key)) for key in calls.samples]
        except Exception as e:  # arguments that cannot be put together again, say: the module runs plain
            why = e if isinstance(e, RekindleError) else _cannot_be_captured(module, e)
            self._failed[known] = why
            self._note_failure(path, module, why)
            return False
        self.found.units += units
        return True

    def _unit(self, path: str, module: nn.Module, kind: Any, given: Recorded, calls: int) -> Unit:
        return Unit(path, module, given.key, calls, given, self._trace(path, module, kind, given))

    def _inputs_train(self, calls: Calls) -> bool:
        return any(t.requires_grad for r in calls.samples.values() for t in r.call.tensors)

    def _varies(self, path: str, kind: Any) -> bool:
        """Whether the shapes of the submodule's inputs depend on the data: forward around it cannot be captured for that
        reason, and on other values the submodule, or one that is like it, is called with other shapes."""
        parents = [path.rpartition(".")[0]]
        while parents[-1]:
            parents.append(parents[-1].rpartition(".")[0])
        why = next((self._why[p] for p in parents if p in self._why), None)
        if not isinstance(why, TraceError) or why.reason not in (SHAPE_FROM_DATA, READS):
            return False
        beside, inside = parents[0], path.count(".")
        like = [
            p for p in self._calls
            if p.startswith(f"{beside}." if beside else "") and p.count(".") == inside
            and self._signature(self.s.model.get_submodule(p)) == kind
        ]  # fmt: skip
        return self._varying.any_of(like)

    def _trace(self, path: str, module: nn.Module, kind: Any, given: Recorded) -> Trace:
        """The trace of a module like this in the same state, if there is one; else its own.

        Raises
        ------
        RekindleError : the module cannot be captured.
        """
        known = self._traces.setdefault((kind, given.key, self._marks(path, module)), [])
        with given.surroundings(module):
            for traced in known:
                if not traced.expected.differences(module):
                    return traced
        announce(self.options.progress, f"capturing {path} ({class_name(module)})")
        args, kwargs = given.call.arguments
        # The model reads all results of its submodules, so none is left out.
        how = replace(
            self.captured, loss="all", optimizer=None, must_save=self._marks(path, module), state_bytes=0, unused=(),
            gradients="kept",
        )  # fmt: skip
        with accept.gradients_on(), given.surroundings(module), warnings.catch_warnings():
            warnings.filterwarnings("ignore", ".*the argument", RekindleWarning)  # such a part is refused below
            accept.module(module)
            accept.parameters(module, given.call.tensors)
            made = trace_call(module, args, kwargs, how, progress=self.options.report)
        if made.lowered.captured.effects:
            dropped = f"its plan would not run {listed(made.lowered.captured.effects)}"
            raise TraceError(dropped, reason=dropped)
        changed = [k for k in made.lowered.captured.dropped if k.startswith(ARGUMENT)]
        if changed:  # the code between the parts reads it
            raise TraceError(f"its plan would not change {listed(changed)}", reason=f"changes {listed(changed)}")
        if made.key != given.key or made.lowered.captured.settles:
            raise TraceError("its call is captured in other surroundings than it has in the step")
        if made.graph.boundary is None:
            raise UsageError("it has no backward")
        # Modules that are like it have this graph: one search serves all.
        twin = next((t for traces in self._traces.values() for t in traces if t.graph.hash == made.graph.hash), None)
        made = made if twin is None else made.with_graph(replace(twin.graph, resident_bytes=made.graph.resident_bytes))
        known.append(made)
        return made

    def _marks(self, path: str, module: nn.Module) -> tuple[str, ...]:
        """Names in the submodule that `must_save` marks in the model."""
        marks = self.captured.must_save
        return tuple(n for n, _ in module.named_modules() if n and marks and is_marked(f"{path}.{n}", marks))

    def _note_failure(self, path: str, module: nn.Module, e: RekindleError) -> None:
        self._open |= _around(e, module)
        self._why[path] = e
        if not isinstance(e, TraceError) or e.reason == NO_BACKWARD:
            return  # it holds nothing, or it is no model for a plan: there is nothing to tell
        if (line := _in_few_words(e, module)) not in self.found.plain:
            self.found.plain.append(line)

    def _add_again(self) -> None:
        """Submodules that cannot be captured, but whose forward may run again as it is: it does nothing but compute."""
        may: dict[Any, bool] = {}
        for path, m in self._opened:
            self._add_if_it_may(path, m, may)
        for path, m in self._varying_parts:
            around = any(path.startswith(f"{u.path}.") for u in self.found.units)  # with which it may run again
            if around or not self._add_if_it_may(path, m, may):
                line = f"{class_name(m)} (its shapes depend on the data)"
                self.found.plain += [] if line in self.found.plain else [line]
        # One that holds all the others is the model but for its loss: to run it again would hold all that it holds at once.
        units = self.found.units
        self.found.units = [
            u for u in units
            if u.trace is not None or len(units) == 1 or sum(v.is_inside(u.path) for v in units) < len(units) - 1
        ]  # fmt: skip

    def _add_if_it_may(self, path: str, module: nn.Module, may: dict[Any, bool]) -> bool:
        """Add the submodule if it may run again. may : what is known of each signature and key."""
        calls = self._calls[path]
        if not calls.samples or is_marked(path, self.captured.must_save) or self.s.fake is not None or inside(module):
            return False
        if not self._inputs_train(calls):
            return False  # backward would not come back through its inputs
        given = next(iter(calls.samples.values()))
        kind = (self._signature(module), given.key)
        if kind not in may:
            announce(self.options.progress, f"looking whether {path} ({class_name(module)}) may run again")
            may[kind] = self._may_run_again(module, given)
        if may[kind]:
            self.found.units.append(Unit(path, module, given.key, len(calls.keys), given))
        return may[kind]

    def _may_run_again(self, module: nn.Module, given: Recorded) -> bool:
        if any(must for must in self.captured.must_save) or given.hooks != hooks_in(module):
            return False  # hooks that code around the call sets are gone when backward runs it again
        try:
            why = more_than_computes(module, given)
        except Exception:  # a forward that works only inside of the model's step
            return False
        if WRITES in why and (line := f"{class_name(module)} ({why})") not in self.found.plain:
            self.found.plain.append(line)
        return not why

    def _add_uncalled(self) -> None:
        """Modules that this step left out, and that are like a part: another step may call them; but not from operators that
        take functions (torch.cond), which compile what they call."""
        if any(isinstance(e, TraceError) and e.reason.endswith(TAKES_FUNCTIONS) for e in self._why.values()):
            return
        inside = [u.path for u in self.found.units]
        like_it: dict[Any, Unit] = {}  # signature -> the first part of that signature
        for u in self.found.units:
            if u.trace is not None:
                like_it.setdefault(self._signature(u.module), u)
        for path, m in self.s.model.named_modules():
            if not path or path in self._calls or any(path == p or path.startswith(f"{p}.") for p in inside):
                continue
            if self.named is not None and path not in self.named:
                continue
            kind = self._signature(m)
            like = like_it.get(kind)
            if like is None:
                continue
            try:
                given = self._calls[like.path].samples[like.key]
                self.found.units.append(self._unit(path, m, kind, given, 0))
            except Exception:  # it runs plain
                continue


def _cannot_be_captured(module: nn.Module, e: Exception) -> TraceError:
    made = TraceError(f"{class_name(module)} cannot be captured: {type(e).__name__}: {e}")
    made.met = e
    return made


def _in_few_words(e: TraceError, model: nn.Module) -> str:
    """The reason why a capture of the model failed, with the user's innermost line and module: "Decoder (train.py:88 reads a
    tensor)"."""
    where, inner = e.line, model
    for frame, line in [] if e.line else _frames(e):
        if is_users(frame):
            where = f"{os.path.basename(frame.f_code.co_filename)}:{line}"
            inner = x if isinstance(x := frame.f_locals.get("self"), nn.Module) else inner
    return f"{class_name(inner)} ({where} {e.reason})" if where else f"{class_name(inner)} ({e.reason})"


def _around(e: BaseException, model: nn.Module) -> set[nn.Module]:
    """The submodules whose forward was running where the capture failed: none of them can be captured either."""
    modules = {id(m): m for m in model.modules()}
    return {modules[id(x)] for f, _ in _frames(e) if id(x := f.f_locals.get("self")) in modules}


def _frames(e: BaseException) -> list[tuple[FrameType, int]]:
    """(frame, line) of the calls through which the exception, or the one that caused it, came."""
    found = traceback.walk_tb((getattr(e, "met", None) or e).__traceback__)
    return [(f, line) for f, line in found if f.f_globals.get("__name__") != "contextlib"]

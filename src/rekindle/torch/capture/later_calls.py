"""Whether later calls compute what the captured one does, whatever forward counts or collects meanwhile."""

from __future__ import annotations

import builtins
import contextlib
import io
import logging
import sys
import threading
from collections.abc import Iterator
from types import FrameType
from typing import Any

import numpy as np
import torch
from torch import nn

from ...saying.frames import is_users, line_of
from ..private import FakeTensorMode, TorchDispatchMode, is_fake, pytree
from ..tensors.objects import same_entry
from ..tensors.op_tensors import written_by
from ..undo.attributes import Attributes
from ..undo.restorable import GENERATORS, Restorable, restorable
from ..undo.side_effects import SideEffects
from .flat import FlatForward
from .trace_errors import depends_on_itself

log = logging.getLogger(__name__)

# How far is looked. All are guesses.
CALLS_MOST = 16  # that are looked ahead; a queue as long as that comes round
QUESTIONS_MOST = 16  # about numbers that forward changes, whose answers are turned round
FAR = (100, 10_000, 1_000_000)  # added to such numbers in arrays


def check_later_calls(
    flat: FlatForward, tensors: list[torch.Tensor], mode: FakeTensorMode, effects: SideEffects
) -> None:
    """Run forward on tensors without data, call after call, and compare the ops that its results depend on.

    Raises
    ------
    TraceError : a later call runs other ops; the message names what it depends on, and the line.
    """
    moved = effects.changed_now()
    names = sorted({*flat.changes.other, *flat.changes.collected})
    if not names and not moved or any(isinstance(w.x, GENERATORS) for _, w in moved):
        return
    saved, state, left = dict(flat.__dict__), Attributes(flat.model), [(w, w.read()) for _, w in moved]
    flat.goes_on = True
    try:
        for w, _ in left:  # they hold tensors of a trace
            w.restore()
        # The user made none of these calls, so they print nothing, even where forward prints in every hundredth call, say.
        with contextlib.redirect_stdout(io.StringIO()):
            _compare(flat, [mode.from_tensor(t) for t in tensors], mode, [*_own(flat.model, names), *moved])
    finally:
        state.restore()
        for w, content in left:
            w.write(content)
        flat.__dict__.update(saved)


def _compare(
    flat: FlatForward, tensors: list[torch.Tensor], mode: FakeTensorMode, held: list[tuple[str, Restorable]]
) -> None:
    asked = _Asked()

    def ops() -> Any:
        lengths = {id(w.x): name for name, w in held if _has_grown(w)}
        for name, w in held:
            w.write(_with_counted(w, name, asked))
        try:
            with _lengths_counted(lengths, asked):
                return _ops(flat, tensors, mode)
        except Exception as e:
            log.debug("a later call of %s cannot be looked at: %r", type(flat.model).__name__, e)
            return None

    first = ops()
    if first is None:
        return
    held = [(name, w) for name, w in held if not w.same()]
    held += [(k, made) for name, w in held for k, x in _new_in(name, w) if (made := restorable(x)) is not None]
    start = [(w, w.read()) for _, w in held]
    for _ in range(min(CALLS_MOST, 1 + max((_length(w) for _, w in held), default=0))):
        if (later := ops()) != first:
            if later is not None:
                raise depends_on_itself(flat.model, [k for name, w in held for k in _names(name, w)])
            return
    for question, (name, line) in list(asked.lines.items())[:QUESTIONS_MOST]:
        for w, content in start:
            w.write(content)
        asked.turn = question
        if ops() not in (None, first):
            raise depends_on_itself(flat.model, [name], line)
    rows = [(name, w) for name, w in held if isinstance(w.before, bytes)]
    for far in FAR if rows else ():  # numbers in arrays note no questions
        for _, w in rows:
            _add(w, far)
        if ops() not in (None, first):
            raise depends_on_itself(flat.model, [name for name, _ in rows])


def _add(w: Restorable, far: int) -> None:
    """Add to the numbers of an array that have changed."""
    now = np.asarray(w.x)
    if now.dtype.kind in "iuf" and now.nbytes == len(w.before):
        now[now != np.frombuffer(w.before, now.dtype).reshape(now.shape)] += np.asarray(far).astype(now.dtype)


def _own(model: nn.Module, names: list[str]) -> Iterator[tuple[str, Restorable]]:
    """Yield the objects that `kept` can put back, each with its name: every module that has an attribute in `names`, and every
    list, dict or set that is such an attribute. A module's name ends in {}, where the attribute's would stand."""
    modules = dict(model.named_modules())
    for path in dict.fromkeys(k.rpartition(".")[0] for k in names):
        if path in modules and (made := restorable(vars(modules[path]))) is not None:
            yield f"{path}.{{}}".lstrip("."), made
    for k in names:
        path, _, leaf = k.rpartition(".")
        x = vars(modules[path]).get(leaf) if path in modules else None
        if isinstance(x, list | dict | set) and (made := restorable(x)) is not None:
            yield k, made


def _entries(content: Any) -> dict[Any, Any]:
    if isinstance(content, dict):
        return content
    return dict(enumerate(content)) if isinstance(content, list) else {0: content}


def _changed(w: Restorable) -> list[tuple[Any, Any]]:
    """(key, entry) of what it holds now and did not hold there at first; of a longer or shorter list, all."""
    now, was = _entries(w.read()), _entries(w.before)
    every = isinstance(w.before, list) and len(now) != len(was)
    return [(k, x) for k, x in now.items() if every or k not in was or not same_entry(x, was[k])]


def _new_in(name: str, w: Restorable) -> list[tuple[str, Any]]:
    """(name, object) of the objects that it did not hold at first."""
    held = set(map(id, _entries(w.before).values()))
    return [(name.format(k), x) for k, x in _changed(w) if id(x) not in held and not isinstance(x, torch.Tensor)]


def _names(name: str, w: Restorable) -> list[str]:
    """Names of what has changed in it."""
    return [name.format(k) for k, _ in _changed(w)] or [name]


def _with_counted(w: Restorable, name: str, asked: _Asked) -> Any:
    """Its content, with numbers that note their questions where it has changed."""
    now, new = w.read(), {k: _counted(x, name.format(k), asked) for k, x in _changed(w)}
    if isinstance(now, dict):
        return now | new
    if isinstance(now, list):
        return [new.get(i, x) for i, x in enumerate(now)]
    return now if isinstance(now, set) else new.get(0, now)


def _has_grown(w: Restorable) -> bool:
    now = w.read()
    return isinstance(now, dict | list | set) and len(now) != len(w.before)


def _length(w: Restorable) -> int:
    """After how many calls a queue comes round; a container that grows is none."""
    now = w.read()
    if isinstance(now, dict):
        rows = [(x, w.before.get(k)) for k, x in now.items() if isinstance(x, tuple | list)]
        return max([1, *(len(x) for x, y in rows if isinstance(y, tuple | list) and x is not y and len(x) == len(y))])
    return len(now) if isinstance(now, list) and len(now) == len(w.before) else 1


def written_outside(flat: FlatForward, tensors: list[torch.Tensor], mode: FakeTensorMode) -> list[torch.Tensor]:
    """The tensors to which forward writes and which stand in no module, but for those that require grad."""
    ran = _Ops()
    with contextlib.suppress(Exception):
        _run(flat, [mode.from_tensor(t) for t in tensors], mode, ran)
    memory = {_memory(t) for t in ran.written}
    return [
        t for t in ran.outside if not t.requires_grad and not memory.isdisjoint(map(_memory, (t, mode.from_tensor(t))))
    ]


def _run(flat: FlatForward, tensors: list[torch.Tensor], mode: FakeTensorMode, ran: _Ops) -> tuple[dict[str, Any], Any]:
    """(the fake parameters and buffers, the results) of one call on tensors without data. ran : notes its ops."""
    own: dict[str, torch.Tensor] = {
        f"model.{k}": mode.from_tensor(t) for k, t in [*flat.model.named_parameters(), *flat.model.named_buffers()]
    }
    cached = torch.is_autocast_cache_enabled()
    torch.set_autocast_cache_enabled(False)  # else the first call casts what later ones find
    try:
        with mode, ran:
            return own, torch.func.functional_call(flat, own, tuple(tensors))
    finally:
        torch.set_autocast_cache_enabled(cached)


def _ops(flat: FlatForward, tensors: list[torch.Tensor], mode: FakeTensorMode) -> list[Any]:
    """The ops of one call, on which its results and what it writes depend, with their constants."""
    ran = _Ops()
    own, results = _run(flat, tensors, mode, ran)
    live = {s for t in [*own.values(), *results] if (s := _memory(t)) is not None}
    found: list[Any] = [flat.questions]
    for op, given, made in reversed(ran.ops):
        if not live.isdisjoint(map(_memory, made)):
            live.update(s for t in given if (s := _memory(t)) is not None)
            found.append(op)
    return found


def _memory(t: torch.Tensor) -> Any:
    return t.untyped_storage()._cdata if t.layout is torch.strided else None


class _Ops(TorchDispatchMode):
    """Notes ops with their constants; tensors that no op made, from lists and globals, are constants too."""

    def __init__(self) -> None:
        super().__init__()
        # (the op, tensors that it reads, those that it makes or writes); they keep their memory's address
        self.ops: list[tuple[Any, list[torch.Tensor], list[torch.Tensor]]] = []
        self.written: list[torch.Tensor] = []
        self.outside: dict[torch.Tensor, None] = {}  # real ones, which no operator of this call has made

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        leaves = pytree.tree_leaves((args, kwargs or {}))
        given = [t for t in leaves if isinstance(t, torch.Tensor)]
        if func is torch.ops.aten._local_scalar_dense.default:  # a call that prints: any number serves
            return torch.ones((), dtype=given[0].dtype, device="cpu").numpy().item()
        if func is not torch.ops.aten.lift_fresh.default:  # which takes a tensor that forward makes of numbers
            self.outside |= {t: None for t in given if type(t) in (torch.Tensor, torch.nn.Parameter)}
        self.written += (written := written_by(func, args, kwargs or {}))
        out = func(*args, **(kwargs or {}))
        made = [t for t in pytree.tree_leaves(out) if isinstance(t, torch.Tensor)]
        told = [("%" if is_fake(x) else id(x)) if isinstance(x, torch.Tensor) else repr(x) for x in leaves]
        self.ops.append(((str(func), *told), given, [*made, *written]))
        return out


# -- numbers that forward changes and then asks about: `n > 8`, `n % 100 == 0`, `len(rows) > 8` -------------------------
# Such a number notes the lines that compare it. Each answer is then turned round in a run of its own: where another graph
# follows, a later call computes something else; where none does, forward only counts, or prints now and then.
class _Asked:
    """The questions about counted numbers. lines : (code, place in it) -> (name of the number, the user's line).

    turn : the question whose next answer is turned round.
    """

    def __init__(self) -> None:
        self.lines: dict[tuple[Any, int], tuple[str, str]] = {}
        self.turn: tuple[Any, int] | None = None

    def answer(self, name: str, answer: Any, frame: FrameType) -> Any:
        if answer is NotImplemented or not is_users(frame):
            return answer
        question = frame.f_code, frame.f_lasti
        self.lines.setdefault(question, (name, line_of(frame)))
        if question != self.turn:
            return answer
        self.turn = None  # once: it may be the condition of a loop
        return not answer


def _counted(x: Any, name: str, asked: _Asked) -> Any:
    """A number, or the numbers in a tuple, with the same value, that note their questions; another value as it is."""
    if type(x) is tuple:
        return tuple([_counted(y, name, asked) for y in x])
    kind = {int: _Int, float: _Float}.get(type(x))
    if kind is None:
        return x
    made = kind(x)
    made.name, made.asked = name, asked
    return made


@contextlib.contextmanager
def _lengths_counted(names: dict[int, str], asked: _Asked) -> Iterator[None]:
    """A context in which `len(container)` gives this thread a number that records where forward uses it.

    names : id of a container -> its name; `len` of other containers is as always.
    """
    plain, here = builtins.len, threading.get_ident()

    def length(x: Any, /) -> int:
        n = plain(x)
        is_ours = id(x) in names and threading.get_ident() == here
        return _counted(n, names[id(x)], asked) if is_ours else n  # type: ignore[no-any-return]

    builtins.len = length  # type: ignore[assignment]
    try:
        yield
    finally:
        builtins.len = plain


class _Int(int):
    name: str
    asked: _Asked
    __hash__ = int.__hash__


class _Float(float):
    name: str
    asked: _Asked
    __hash__ = float.__hash__


def _asks(base: Any, method: str) -> Any:
    plain = getattr(base, method)

    def ask(self: Any, *others: Any) -> Any:
        return self.asked.answer(self.name, plain(self, *others), sys._getframe(1))

    return ask


def _computes(base: Any, method: str) -> Any:
    plain = getattr(base, method)

    def compute(self: Any, *others: Any) -> Any:
        return _counted(plain(self, *others), self.name, self.asked)

    return compute


_TWO = ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "divmod")
for _kind in (_Int, _Float):
    _base: Any = _kind.__base__
    for _name in ("lt", "le", "eq", "ne", "gt", "ge", "bool"):
        setattr(_kind, f"__{_name}__", _asks(_base, f"__{_name}__"))
    for _name in (*_TWO, *(f"r{x}" for x in _TWO), "neg", "pos", "abs", "round"):
        setattr(_kind, f"__{_name}__", _computes(_base, f"__{_name}__"))

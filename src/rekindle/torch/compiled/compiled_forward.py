"""The forward of a part that torch.compile runs, and the functions that it compiles: one for each kind and way.

Dynamo keeps what it has compiled by code object and by backend. So equal modules share one function, with a code object of its
own: a model of many equal blocks compiles one of them.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import types
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import fx, nn

from ...compiling import IN_SLICES, Compiled, CompileOptions
from ...errors import RekindleError
from ...printed import first_line
from .. import private
from ..measure.caches import without_caches
from ..measure.recording import signature
from ..run.own_forward import SwitchedForward
from ..run.results import is_looked_at, refuse_ends
from ..serve.said_once import WarnOnce
from ..situation.callables import HOOKS, codes_in
from ..situation.globals import ON_TENSORS, Globals
from ..situation.surroundings import not_in_graphs
from ..situation.values import CODE, Key, Watch, key_of
from ..tensors import tree
from ..tensors.lock import LOCK
from ..tensors.objects import changeable, function_in, is_elsewhere, reached_in
from ..undo.side_effects import methods_of
from .compiler import allow_retaining, as_partitioner, compiled_node, inductor, limit_reached_by, mode_settings
from .saving import Saving

COMPILERS = ("torch._dynamo", "torch._inductor", "torch._functorch")  # where their errors are defined
SHARED_BYTES = 2**18  # more than the labels of a slice, and less than its logits; a guess

_compiled: dict[Any, Callable[..., Any]] = {}


class NotCompiled(RekindleError):
    """The compiler failed on a stage."""


class CompiledForward(SwitchedForward):
    """The forward of a part that runs compiled, in one way.

    way : what forward saves; None: the part runs as it is. kind : equal for parts that share what is compiled, as `Kinds` has
    it. keeps_caches : the step makes key-value caches, as `config.use_cache` says.
    """

    # A copy, and an unpickled one, makes these anew. raises : the compiler's errors, in place of a warning.
    _call: Any = None
    _late: LateValues | None = None
    raises = False

    def __init__(
        self, model: nn.Module, way: Compiled | None, options: CompileOptions, kind: str, keeps_caches: bool = False
    ):
        super().__init__(model)
        self.way, self.options, self.kind, self.keeps_caches = way, options, kind, keeps_caches
        self._training, self._warned = model.training, WarnOnce()
        # as they are compiled; None: as at the next call
        self._functions: list[Any] | None = functions_of_classes(model)

    def _pickled(self) -> Any:
        way = None if self.way is None else self.way.saves
        return way, self.options.to_json(), self.kind, self.keeps_caches, self._training, self.is_off

    def _unpickle(self, pickled: Any) -> None:
        way, options, self.kind, self.keeps_caches, self._training, self.is_off = pickled
        self.way = None if way is None else Compiled(way)
        self.options = CompileOptions(options["mode"], options["options"])
        self._warned, self._functions = WarnOnce(), None

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledForward:
        copied = super().__deepcopy__(memo)
        copied._call, copied._warned, copied._late = None, WarnOnce(), None
        return copied

    @private.not_traced_by_compile
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        model = self._model()
        runs_plain = (
            self.way is None or self.is_off or LOCK.mine or not torch.is_grad_enabled() or model is None
            or model.training != self._training or private.in_func_transform() or private.in_forward_ad()
        )  # fmt: skip
        if runs_plain or private.modes_are_on():  # under which torch.compile compiles nothing
            self.count_plain(model is not None and model.training == self._training)
            return self.plain(*args, **kwargs)
        assert model is not None
        self._functions = self._functions or functions_of_classes(model)
        if why := not_compiled(model, self._own) or replaced(self._functions) or not_in_graphs():
            self._say_plain(
                f"{type(model).__name__} {why}, which compiled code would not run: its calls run uncompiled"
            )
            return self.plain(*args, **kwargs)
        return self._compiled(model, args, kwargs)

    @property
    def is_ready(self) -> bool:
        """Whether the code is known to be compiled, so that a measured call takes no memory for compiling."""
        return self.way is None

    def _make_call(self, model: nn.Module) -> Callable[..., Any]:
        """A function of (module, *arguments), whose first call compiles."""
        assert self.way is not None
        key = self.kind or signature(model), self.way, self.options.key
        if key not in _compiled:
            compile_it = inductor(settings(self.way, self.options))

            def backend(graph: fx.GraphModule, inputs: Sequence[Any]) -> Callable[..., Any]:
                results: Any = graph.graph.output_node().args[0]
                inner = [i for i, n in enumerate(results) if n.op != "placeholder" and len(n.users) > 1]
                return functools.partial(noting_looks, compile_it(graph, inputs), inner)

            _compiled[key] = torch.compile(own_function(own_forward), backend=backend, fullgraph=True, dynamic=False)
        return _compiled[key]

    def _compiled(self, model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        assert self.way is not None
        if self._call is None:
            self._call = self._make_call(model)
        with without_caches(model, self.keeps_caches):
            try:
                if self.copies is None:
                    result = self._call(model, *args, **kwargs)
                else:
                    run = functools.partial(self._call, model, *args, **kwargs)
                    result = self.copies.run(model, (args, kwargs), run)
                self.tally.ran += 1
                allow_retaining(tree.tensors_in(result))
                self._late = self._late or LateValues(model)
                self._late.watch(result, {**dict(enumerate(args)), **kwargs})
                return result
            except Exception as e:
                if self.raises or not (isinstance(e, NotCompiled) or type(e).__module__.startswith(COMPILERS)):
                    raise
                which = getattr(model, "path", type(model).__name__)
                why = f"cannot compile a call of {which} ({type(e).__name__}: {first_line(e)[:100]})"
                advice = ""
                if guard := limit_reached_by(e):
                    why = f"has reached its limit of versions of {which} (the guard that failed last: {guard[:100]})"
                    many = "pad inputs to a few sizes" if "size mismatch" in guard else "keep what changes in a tensor"
                    advice = f"; {many}, or raise torch._dynamo.config.recompile_limit"
                self._say_plain(
                    f"torch.compile {why}: such calls run uncompiled, in more memory{advice}", "limit" * bool(guard)
                )
                return self.plain(*args, **kwargs)

    def _say_plain(self, words: str, kind: str = "") -> None:
        """Count a call that runs uncompiled, and warn once."""
        self.tally.add_plain(words, self._warned.warn(words, kind))

    @contextlib.contextmanager
    def as_it_is(self) -> Iterator[None]:
        """Inside, calls run compiled as they are, if compiled at all: without a plan."""
        before, call = self.way, self._call
        self.way, self._call = None if before is None else Compiled(), None
        try:
            yield
        finally:
            self.way, self._call = before, call


def not_compiled(module: nn.Module, own: Any) -> str:
    """Why a part must run uncompiled: "has hooks on its submodules"; "" if it may be compiled. own : a forward in the module's
    `__dict__`; None: it has its class's. Equal parts share code, which knows neither."""
    inside = [vars(m) for m in module.modules()][1:]
    if own is not None or any("forward" in table for table in inside):
        return "has a forward of its own"
    a, b, c, d = HOOKS
    if any(table[a] or table[b] or table[c] or table[d] for table in inside):  # a loop over HOOKS takes twice as long
        return "has hooks on its submodules"
    return ""


def functions_of_classes(model: nn.Module) -> list[Any]:
    """(class, name, function, its code and defaults) of the forwards of the submodules' classes and of the methods that these
    name, and so on. Dynamo takes them for granted, and has no guard for them."""
    found: list[Any] = []
    for kind in dict.fromkeys(map(type, model.modules())):
        names = ["forward"]
        for name in names:  # which grows
            f = function_in(inspect.getattr_static(kind, name, None))
            if isinstance(f, types.FunctionType):
                found.append((kind, name, f, CODE(f)))
                names += [
                    k for c in codes_in(f.__code__) for k in c.co_names if k not in names and k not in vars(nn.Module)
                ]
    return found


def replaced(functions: list[Any]) -> str:
    """Why a part must run uncompiled: one of `functions_of_classes` is another one now; "" if none is."""
    for kind, name, f, code in functions:
        if function_in(getattr(kind, name, None)) is not f or CODE(f) != code:
            return f"has another {kind.__name__}.{name} than when it was compiled"
    return ""


def settings(way: Compiled, options: CompileOptions) -> dict[str, Any]:
    """Inductor's settings for a way."""
    how = {**mode_settings(options.mode), **options.options}
    if way.saves not in ("min-cut", "gradients"):
        as_partitioner(Saving)
        how["custom_partitioner_fn"] = Saving(way.saves)
    if way.saves in IN_SLICES:
        # Inductor would fuse the kernels of two slices, as both read the labels, and hold the logits of both.
        how.setdefault("score_fusion_memory_threshold", SHARED_BYTES)
    return how


def own_function(run: Any) -> Callable[..., Any]:
    """The function with a code object of its own."""
    return types.FunctionType(run.__code__.replace(), run.__globals__, run.__name__, run.__defaults__, run.__closure__)


def own_forward(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """The forward of the module's class."""
    return type(module).forward(module, *args, **kwargs)


def noting_looks(call: Callable[..., Any], inner: Sequence[int], *inputs: Any) -> list[Any]:
    """The results of the compiled call. inner : those from which it goes on itself: their whole gradient stays inside."""
    results = [*call(*inputs)]
    found = [(i, results[i]) for i in inner if isinstance(results[i], torch.Tensor) and results[i].grad_fn is not None]
    looked = {i: node for i, t in found if (node := compiled_node(t.grad_fn)) is not None}
    for i, node in looked.items():
        node.register_prehook(functools.partial(_refuse_look, weakref.ref(results[i])))
    return refuse_ends(results, looked, _GOES_ON)


def _refuse_look(result: Callable[[], Any], _: Any) -> None:
    if is_looked_at(result):
        raise RekindleError(f"a hook or retain_grad() is on a result of shape {list(result().shape)}, {_GOES_ON}")


_GOES_ON = (
    "from which compiled code goes on, and it gets a part of its gradient alone. Plan without compile=True for such steps, "
    "or call rekindle.restore(model)"
)


# -- values that code in backward reads: compiled code has them as they were in forward --------------------------------
class LateValues:
    """The values that autograd Functions and hooks of a module may read in backward, as far as its code names them."""

    def __init__(self, model: nn.Module):
        kinds = {type(m) for m in model.modules() if type(m).__module__.partition(".")[0] != "torch"}
        methods = [f for kind in kinds for f in methods_of(kind)]
        named = Globals(methods, Watch(), ())
        self._model, self._code = weakref.ref(model), [*named.backward, *named.hung(ON_TENSORS)]
        self._names, self._read = ({k for f in fs for c in codes_in(f.__code__) for k in c.co_names}
                                   for fs in (self._code, named.functions))  # fmt: skip
        self._of_class = {kind: [k for k in self._names if _is_data(kind, k)] for kind in kinds}
        self._globals = {id(f.__globals__): f.__globals__ for f in named.functions}.values()

    def _keys(self, model: nn.Module, given: Mapping[Any, Any]) -> dict[Any, Key]:
        """Name of a value, or (name, id) of an object that forward may leave to a Function or hook -> its key."""
        held = [
            (f"{path}." * bool(path), {k: getattr(type(m), k) for k in self._of_class.get(type(m), ())} | vars(m))
            for path, m in model.named_modules()
        ]
        found: dict[Any, Key] = {f"{at}{k}": key_of(table[k]) for at, table in held for k in self._names & table.keys()}
        tables = *held, *(("the global ", t) for t in self._globals)
        left = {id(table[k]): (f"{at}{k}", table[k]) for at, table in tables for k in self._read & table.keys()}
        left |= {id(x): (f"argument {k}", x) for k, x in given.items()}
        found |= {(name, i): key_of(x) for i, (name, x) in left.items() if _is_read_in(x)}
        return Globals(self._code, Watch(), ()).keys | found

    def watch(self, result: Any, arguments: Mapping[Any, Any]) -> None:
        """Let the backward of this result raise an error if one of the values has changed until then."""
        model = self._model()
        if self._code and model is not None:  # an object with tensors may lead back to the node that holds the hook
            given = {
                k: x for k, x in arguments.items() if _is_read_in(x) and not [*tree.tensors_in([*reached_in([x])])]
            }
            for node in {t.grad_fn for t in tree.tensors_in(result) if t.grad_fn is not None}:
                node.register_prehook(functools.partial(self._compare, given, self._keys(model, given)))

    def _compare(self, given: Mapping[Any, Any], before: Mapping[Any, Key], _: Any) -> None:
        model = self._model()
        now = {} if model is None else self._keys(model, given)
        changed = [k for k, x in now.items() if before.get(k, x if isinstance(k, tuple) else None) != x]
        if changed:
            which = changed[0][0] if isinstance(changed[0], tuple) else changed[0]
            raise RekindleError(
                f"{which} was set after forward, and code in backward of {type(model).__name__} may read it; "
                "compiled code reads it in forward. Set it before forward, or plan without compile="
            )


def _is_data(kind: type[nn.Module], name: str) -> bool:
    """Whether the name stands for a class attribute of the user's, and not for a method or property."""
    x = inspect.getattr_static(kind, name, None)
    return hasattr(kind, name) and not hasattr(nn.Module, name) and not hasattr(type(x), "__get__")


def _is_read_in(x: Any) -> bool:
    """Whether x is a container, or an object of a user's class, and holds a number or text. A list of tensors is not: forward
    returns such lists."""
    mine = isinstance(x, dict | list | set) or not is_elsewhere(x)
    return mine and bool(changeable([x])) and any(isinstance(y, int | float | str) for y in reached_in([x]))

"""Second derivatives: a backward with `create_graph=True` runs the call's own forward again, plainly, and differentiates that.
So does a backward of a batch of gradients: a plan's ops write into memory of their own, which vmap cannot follow.

Autograd has no record of a planned backward. The plain forward that runs again makes a graph of its own, on leaves that stand
for the call's inputs, and all derivatives are taken in it. Gradients of the inputs, of all orders together, leave it by the
stages of the planned step: so they are added up as in eager.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple

import torch
from torch import fx, nn

from ...errors import RekindleError
from ...model.judge import plain_activation_bytes
from ...saying import notices
from ..capture.captured import fake_result
from ..capture.eager_kernels import InTheirPlace
from ..capture.inner_results import edges_behind
from ..capture.left_out import taken_apart
from ..lowering.phases import ancestors, phases
from ..operators import rules
from ..operators.node_tensors import storage_bytes
from ..private import backward_keeps_graph, backward_number, in_func_transform, pytree, stand_for_many, will_run
from ..situation.guards import Guards
from ..situation.module_call import ModuleCall
from ..situation.numbers import Attribute, attributes_set, holder_of, name_of, read, replaced
from ..situation.surroundings import autocast_of, casts_now
from ..situation.values import key_of, plain_of
from ..tensors import rng, tree
from ..tensors.objects import values_set
from ..trace import Trace, plain_forward
from ..undo.attributes import Attributes
from ..undo.restorable import PutBack
from ..undo.side_effects import SideEffects
from .sample import leaf_of, trained_as

# Of tensors that forward reads and writes (a spectral norm's vectors), to keep old values of, which no plan counts: at least,
# at most, and between the two a share of the plain step's activations. Guesses.
OLD_LEAST_BYTES, OLD_MOST_BYTES, OLD_SHARE = 2**16, 2**20, 0.01
CREATE_GRAPH = "a backward with create_graph=True"
OTHER_AUTOCAST = "a backward under another autocast than its plan was made for"
LATE = "a backward whose code reads {}, which was set after forward,"
BATCH = "a backward of a batch of gradients (is_grads_batched=True, vectorize=True or vmap)"
_IN_TURN = "with create_graph=True that cannot be differentiated in turn"


class Term(NamedTuple):
    """A tensor of the graph of the plain forward, and the gradient that came back to it from outside.

    known : (leaf, tensor outside that it stands for) of the gradients that the tensor was computed from.
    """

    tensor: torch.Tensor
    gradient: torch.Tensor
    known: tuple[tuple[torch.Tensor, torch.Tensor], ...] = ()


class PlainAgain:
    """Runs the plain forward again for calls that a plan has run. given : inputs of its program. guards : the plan's."""

    def __init__(self, model: nn.Module, traced: Trace, given: Sequence[fx.Node], guards: Guards):
        c = traced.lowered.captured
        self.model, self.trace, self.guards = weakref.ref(model), traced, guards
        self.told: set[str] = set()  # reasons for which it ran
        self.outside = {i: c.constants[p] for i, p in enumerate(given) if p in c.constants}  # see `written_outside`
        names = {**c.params, **c.buffers, **{p: f"argument {k}" for p, k in c.inputs.items()}}
        self.names = [names.get(p, "a tensor of no module") for p in given]
        self.arguments = {i: c.inputs[p] for i, p in enumerate(given) if p in c.inputs}
        self.trained = [i for i, p in enumerate(given) if p in c.gradients]
        written = {*c.mutations, *(p for w in c.writing.values() for p in w.placeholders)}
        written |= {p for p, name in c.buffers.items() if name in c.assigned}
        self.written = [i for i, p in enumerate(given) if p in written]
        needed = ancestors([*c.outputs, *c.gradients.values()])  # another is read only for what forward writes
        read_too = [given[i] for i in self.written if given[i] in needed]
        size = sum(storage_bytes(p.meta["val"]) for p in read_too)
        small = size <= OLD_LEAST_BYTES or size <= min(OLD_MOST_BYTES, OLD_SHARE * plain_activation_bytes(traced.graph))
        self.old = {i: small for i in self.written if given[i] in read_too}  # whether a copy of the old value is kept
        draws = not traced.fake and any(rules.draws_random(n.target) for n in c.nodes)
        cuda = [f"cuda:{i}" for i in rng.cuda_indices(p.meta["val"] for p in given)]
        self.generators = ["cpu", *cuda] if draws else []
        self._depends: dict[Any, bool] = {}

    def depends_on(self, casts: tuple[tuple[str, torch.dtype], ...]) -> bool:
        """Whether the captured backward would compute otherwise under this autocast, which is on: an op of it would be cast."""
        if casts not in self._depends:
            ops = phases(self.trace.as_captured.lowered.captured).backward
            self._depends[casts] = self.trace.key[-1][-1] or any(map(_is_cast, ops))
        return self._depends[casts]


class Second:
    """The second derivatives of one call. It is made before the call runs, and notes all that the call needs to run again.

    owner : the planned forward, which knows the plain one. inputs : of the plan's program.
    """

    def __init__(self, again: PlainAgain, call: ModuleCall, owner: Any, inputs: Sequence[torch.Tensor]):
        model, places = again.model(), again.trace.lowered.captured.numbers.places
        assert model is not None
        self._again, self._owner = again, None if owner is None else weakref.ref(owner)
        # Not the call's structure: it refers to the caller's containers, which may come to hold the results.
        self._form, self._numbers = call.form, read(places, call.spec, model) or {} if places else {}
        self._tensors = [weakref.ref(t) for t in call.tensors]  # weak, since the plan may let go of them after forward
        self._handed = {k: (call.given[k], key_of(call.given[k])) for k in again.trace.lowered.captured.handed}
        self._versions = [t._version for t in inputs]
        self._old = {i: inputs[i].detach().clone() for i, small in again.old.items() if small}
        self._random = {d: rng.state(d) for d in again.generators}
        self._leaves: dict[int, torch.Tensor] = {}  # input of the program -> the leaf that stands for it
        self._results: list[torch.Tensor] = []
        self._waiting: dict[int, list[Term]] = {}  # number of a backward call -> terms that its last part adds up
        self._why = CREATE_GRAPH  # the backward for which forward runs again, in words

    @property
    def waits(self) -> bool:
        """Whether the backward that runs has come back to derivatives of this call."""
        return backward_number() in self._waiting

    def _changed(self) -> list[str]:
        """The arguments that forward has left to code in backward and that have changed since."""
        return [f"the argument {k}" for k, (x, key) in self._handed.items() if key_of(x) != key]

    def is_stale(self) -> bool:
        """Whether the backward that begins computes other than the captured one: it runs under another autocast, or code in it
        would read another value."""
        a = self._again
        casts, *_ = of_forward = a.trace.key[-1]
        if (now := casts_now()) != (casts[:-1] if of_forward[-1] else ()) and a.depends_on(now):
            self._why = OTHER_AUTOCAST + ", for which later calls get a plan," * (not now or now == casts[:-1])
            if (owner := None if self._owner is None else self._owner()) is not None:
                owner.inside = now == casts[:-1]
            return True
        model, late = a.model(), a.trace.expected.late
        if model is None or not late and not self._handed:
            return False
        found = [] if a.guards.hold(model) else a.trace.expected.differences(model)
        numbers = read([*self._numbers], None, model) or {}
        found += [
            name_of(p, None) for p, x in self._numbers.items() if isinstance(p, Attribute) and numbers.get(p) != x
        ]
        if names := [*self._changed(), *(k for k in found if k in late)]:
            self._why = LATE.format(names[0])
        return bool(names)

    def gradients(self, *given: Any) -> dict[int, list[Any]] | None:
        """As `made_again`; None: that takes more memory than there is, and the planned backward has numbers that are close."""
        try:
            return self.made_again(*given)
        except torch.OutOfMemoryError:
            if not self._why.startswith(OTHER_AUTOCAST):
                raise
        notices.warn(f"{OTHER_AUTOCAST} does not fit the memory; the planned one runs, and gradients have its bits")
        return None

    def made_again(
        self,
        tangents: Mapping[int, Any],
        wanted: Iterable[int],
        direct: Collection[int],
        cuts: Sequence[int],
        carried: Mapping[int, Any],
        anchor: torch.Tensor,
        last: bool,
    ) -> dict[int, Any]:
        """The gradients of the wanted inputs; of result i, in a list of parts, where the number is -1 - i.

        tangents : result -> the gradient that came back to it, or None. direct : inputs to which these gradients come directly.
        cuts : results at which gradients end, for autograd to go on with them outside. carried : input -> a gradient to which
        its own is added. anchor : see `_Recorded`. last : no further gradients of this backward are asked for.

        Raises
        ------
        RekindleError : an input of the call is gone, or the module is in another state. RuntimeError : a tensor was written to.
        """
        if not self._leaves:
            many = stand_for_many(tangents.values())
            if many and torch.is_grad_enabled():
                raise _refusal(BATCH, _IN_TURN)
            if many and self._random:
                raise _refusal(BATCH, "it draws random numbers, which torch forbids there")
            try:
                self._run(BATCH if many else self._why)
            except RuntimeError as e:  # an autograd Function of the user's, say, inside of vmap
                if not in_func_transform():
                    raise
                raise _refusal(BATCH, f"there it fails: {e}") from None
        terms = [Term(self._results[k], g) for k, g in tangents.items() if g is not None]
        waiting = self._waiting.pop(backward_number(), [])
        terms = [t for t in terms if t.tensor.requires_grad] + waiting
        self._waiting.clear()
        terms += [Term(self._leaves[i], g) for i, g in carried.items()]
        numbers = sorted(i for i in wanted if waiting or i in direct or i in carried)
        leaves = [self._leaves[i] if i >= 0 else self._results[-1 - i] for i in numbers]
        ends, keep = [self._results[i] for i in cuts], backward_keeps_graph()
        if not keep and last:
            self._leaves, self._results = {}, []
        return dict(zip(numbers, self.differentiated(terms, leaves, anchor, keep or not last, ends), strict=True))

    def differentiated(
        self,
        terms: Sequence[Term],
        leaves: Sequence[torch.Tensor],
        anchor: torch.Tensor,
        keep: bool = True,
        ends: Sequence[torch.Tensor] = (),
    ) -> list[Any]:
        """The gradients of these leaves; under `create_graph=True` they can be differentiated in turn. No gradient goes beyond
        the tensors `ends`, which may be among the leaves; theirs come in lists of parts, as autograd adds them up."""
        if not terms or not leaves:
            return [None] * len(leaves)
        record = torch.is_grad_enabled()
        if record and stand_for_many(t.gradient for t in terms):
            raise _refusal(BATCH, _IN_TURN)
        own = [(t.gradient.detach().requires_grad_() if record else t.gradient, t.gradient) for t in terms]
        parts: dict[int, list[torch.Tensor]] = {id(t): [] for t in ends}
        # At `ends` zeros go on in place of a gradient.
        hooks = [t.register_hook(lambda g: g if g is None else torch.zeros_like(g)) for t in ends if t.requires_grad]
        at = {(t.grad_fn, t.output_nr): parts[id(t)] for t in ends}
        for node, place, edge in edges_behind([t.tensor.grad_fn for t in terms], at) if ends else ():
            if edge in at:
                hooks.append(node.register_hook(functools.partial(_note, at[edge], place)))
        try:
            found = torch.autograd.grad(
                [t.tensor for t in terms], leaves, [leaf for leaf, _ in own],
                create_graph=record, retain_graph=record or keep, allow_unused=True,
            )  # fmt: skip
        finally:
            for hook in hooks:
                hook.remove()
        every = [g for t, x in zip(leaves, found, strict=True) for g in parts.get(id(t), [x])]
        rest = iter(self._recorded(every, terms, own, anchor) if record else every)
        return [[next(rest) for _ in parts[id(t)]] if id(t) in parts else next(rest) for t in leaves]

    def _recorded(self, found: list[Any], terms: Sequence[Term], own: Sequence[Any], anchor: torch.Tensor) -> list[Any]:
        """The gradients, such that they can be differentiated. own : (leaf, tensor outside) of the terms' own gradients."""
        known = tuple(dict.fromkeys([*(pair for t in terms for pair in t.known), *own]))
        made = iter(_Recorded.apply(self, [g for g in found if g is not None], known, anchor, *[x for _, x in known]))
        return [None if g is None else next(made) for g in found]

    def add(self, terms: list[Term]) -> None:
        """Let the running backward call add these up with the others of the call."""
        self._waiting.setdefault(backward_number(), []).extend(terms)

    def _run(self, asked: str) -> None:
        """Run the plain forward, as the call was made. The module and all that forward reaches are left as they were.

        asked : what it runs for, in words.
        """
        a, c = self._again, self._again.trace.lowered.captured
        model, tensors = a.model(), [t() for t in self._tensors]
        if model is None:
            raise _refusal(asked, "the module was deleted")
        if changed := self._changed():
            raise _refusal(asked, f"{changed[0]} has changed since")
        expected, before = a.trace.expected, list[Any]()
        for name in expected.differences(model):
            if name in c.assigned or expected.early is not None and name not in expected.early:
                continue
            key = expected.keys.get(name)
            holder, leaf = holder_of(model, name)
            if leaf not in getattr(holder, "__dict__", ()) or (x := plain_of(key)) is key:
                raise _refusal(asked, f"{name}, which forward reads, has changed since")
            before.append((holder if isinstance(holder, type) else vars(holder), leaf, x))
        owner = None if self._owner is None else self._owner()
        if owner is not None and owner.is_checked:  # the model's forward takes them itself, in each step
            raise _refusal(asked, "then no plan of the module lowers the step's memory")
        if any(isinstance(m, torch.jit.ScriptModule) for m in model.modules()):
            raise _refusal(asked, "a part of it is a ScriptModule, whose parameters cannot be replaced")
        if any(t is None for t in tensors):
            stays = ", or plan with offload=False" if owner is not None and owner.copies is not None else ""
            raise _refusal(
                asked,
                f"an input of the call has been freed since. Keep it in a variable until this backward is over{stays}",
            )
        now: list[Any] = [
            tensors[a.arguments[i]] if i in a.arguments else a.outside[i] if i in a.outside else attrgetter(k)(model)
            for i, k in enumerate(a.names)
        ]  # fmt: skip
        self._check(now, asked)
        if asked not in a.told:
            a.told.add(asked)
            notices.warn(
                f"{asked} goes through the planned {type(model).__name__}: its own forward runs "
                "again, plainly, and takes a plain step's memory, not the plan's"
            )
        new = [self._old.get(i, t.detach()).clone() if i in a.written else t for i, t in enumerate(now)]
        with torch.enable_grad():
            for i in a.trained:
                new[i] = trained_as(now[i].detach(), now[i])
                self._leaves[i] = leaf_of(new[i])
            for i, k in a.arguments.items():
                tensors[k] = new[i]
            # of several names of one tensor, the first has the gradient
            stands = {id(now[i]): new[i] for i in reversed(range(len(now)))}
            given = tree.unflatten(tensors, replaced(a.trace.spec, self._numbers))
            args, kwargs = self._form.arguments(given)
            call = functools.partial(plain_forward(model) if owner is None else owner.plain, *args, **kwargs)
            effects, back, attributes = SideEffects(model, given), PutBack(), Attributes(model)
            if changes := bool(c.dropped or c.effects):  # else forward changes no object
                effects.watch()
            drawn = torch.random.fork_rng([d for d in self._random if d != "cpu"], enabled=bool(self._random))
            instead = {id(t): (t, new[i]) for i, t in a.outside.items()}
            outside = InTheirPlace(instead) if instead else contextlib.nullcontext()
            with drawn, outside, attributes_set(model, self._numbers), values_set(before), autocast_of(a.trace.key[-1]):
                for device, state in self._random.items():
                    rng.restore(state, device)
                try:
                    for m in model.modules():
                        for table in (m._parameters, m._buffers, m.__dict__):
                            table.update({k: stands[id(t)] for k, t in table.items() if id(t) in stands})
                    owned = {id(x.container): x for x in tree.owned(given, a.trace.spec)}
                    found = taken_apart(call(), owned, a.trace.options.unused, a.trace.options.loss).tensors
                finally:
                    assigned = attributes.restore().assigned
                    if changes:
                        effects.put_back(back)
                    back.finish()
        self._results = [t for k, t in enumerate(found) if k not in c.aliased_inputs]
        own = len(self._results)
        self._results += [assigned[k] for k, x in c.assigned.items() if x.output is not None and x.output >= own]

    def _check(self, now: Sequence[torch.Tensor], asked: str) -> None:
        names, written, old = self._again.names, self._again.written, self._again.old
        for i, (t, version) in enumerate(zip(now, self._versions, strict=True)):
            if not old.get(i, True):
                raise _refusal(
                    asked, f"forward writes over {names[i]}, which it reads; a step keeps no copy that large"
                )
            if i not in written and t._version != version:
                raise RuntimeError(
                    "one of the variables needed for gradient computation has been modified by an inplace operation: "
                    f"{names[i]}, of shape {list(t.shape)}, between forward and this backward"
                )


class _Recorded(torch.autograd.Function):
    """Gradients that can be differentiated: tensors of the plain forward's graph, with the tensors outside that they follow
    from. The anchor leads back to the planned step, whose first node waits until all its derivatives have come back."""

    @staticmethod
    def forward(
        ctx: Any, second: Second, found: list[torch.Tensor], known: tuple[Any, ...], anchor: torch.Tensor, *outside: Any
    ) -> Any:
        ctx.second, ctx.found, ctx.leaves = second, found, [leaf for leaf, _ in known]
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(anchor, *outside)
        made = [t.detach() for t in found]
        ctx.mark_non_differentiable(*[m for m, t in zip(made, found, strict=True) if not t.requires_grad])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        anchor, *outside = ctx.saved_tensors
        known, needed = tuple(zip(ctx.leaves, outside, strict=True)), ctx.needs_input_grad[4:]
        terms = [Term(t, g, known) for t, g in zip(ctx.found, grads, strict=True) if g is not None]
        able = [leaf for leaf, is_needed in zip(ctx.leaves, needed, strict=True) if is_needed]
        back = iter(ctx.second.differentiated(terms, able, anchor))
        if will_run(ctx.next_functions[0][0]):
            ctx.second.add(terms)
        if not backward_keeps_graph():
            ctx.maybe_clear_saved_tensors()
            ctx.found = ctx.leaves = ()
        return None, None, None, torch.zeros_like(anchor), *[next(back) if n else None for n in needed]


def _note(parts: list[torch.Tensor], place: int, gradients: Sequence[Any], _: Any) -> None:
    """A hook that notes one of the gradients that a node of autograd makes."""
    if gradients[place] is not None:
        parts.append(gradients[place])


def _is_cast(n: fx.Node) -> bool:
    """Whether the autocast that is on casts arguments of an op."""
    made, was = (pytree.tree_leaves(x) for x in (fake_result(n), n.meta["val"]))
    return [x.dtype for x in made if torch.is_tensor(x)] != [x.dtype for x in was if torch.is_tensor(x)]


def _refusal(asked: str, why: str) -> RekindleError:
    instead = "Take one gradient at a time (vectorize=False), or" if asked is BATCH else "Or"
    return RekindleError(
        f"{asked} needs forward to run again, and {why}. {instead} call rekindle.restore(model) for steps that need it"
    )

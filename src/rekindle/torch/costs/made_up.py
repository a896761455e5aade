"""Runs of an operator call on made-up tensors, outside of everything that the caller has switched on.

They also give the sizes of results that PyTorch's shape rules do not know, the workspaces that fused recurrent kernels save for
backward: the rules return an empty byte tensor, the kernels megabytes.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import fx
from torch.fx import Node

from ..capture.captured import Captured, joint_fake_mode
from ..operators import rules
from ..operators.memory_order import elements_spanned
from ..operators.rules import runnable
from ..operators.table import record_of
from ..private import disable_modes, tree_map_only
from ..tensors.op_tensors import storages_of, tensors_in
from .operator_calls import OperatorCall, call_of

log = logging.getLogger(__name__)

# Operators whose operands may be used again. Scatters, copies and the like may look at storages as a whole; the norms named
# update running statistics, though their schemas do not say so. Operators of other libraries may do either.
_REUSING = re.compile(
    r"(?:aten|rekindle)::(?!.*(scatter|strided|copy|native_batch_norm$|cudnn_batch_norm$|miopen_batch_norm$))"
)


def as_call(node: Node) -> tuple[str | None, Callable[[], Any]]:
    """The key of the node's call, and a function that runs the call on made-up inputs and leaves no trace."""
    call = call_of(node, None)
    if call is None:
        raise TypeError(f"{node} computes nothing")

    def run() -> Any:
        if not at_hand(call.device):
            raise RuntimeError(f"no {call.device} here")
        with undisturbed([call]):
            args, kwargs = real_arguments(call)
            return runnable(call.target)(*args, **kwargs)

    return call.key, run


def at_hand(device: torch.device) -> bool:
    """Whether this machine can run operators on the device."""
    if device.type == "cuda":
        return torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count()
    return device.type == "cpu"


@contextmanager
def undisturbed(calls: Sequence[OperatorCall]) -> Iterator[None]:
    """Run plain kernels inside, whatever modes the caller has switched on, and keep the caller's random state."""
    with ExitStack() as stack:
        stack.enter_context(disable_modes())
        cuda = {c.device.index or 0 for c in calls if c.device.type == "cuda"}
        stack.enter_context(torch.random.fork_rng(devices=sorted(cuda)))
        stack.enter_context(torch.no_grad())
        for device_type in {"cpu"} | {c.device.type for c in calls}:
            stack.enter_context(torch.autocast(device_type, enabled=False))
        yield


class Operands:
    """Memory for the arguments of calls that run one after another: made once and used again.

    The tensors of one call never share memory, since each has a number of its own. Fresh tensors go to calls that may write to
    their arguments, or that look at a storage as a whole, which is larger here than the tensor.
    """

    def __init__(self) -> None:
        self._memory: dict[tuple[torch.device, torch.dtype, int], torch.Tensor] = {}

    def of(self, call: OperatorCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call's arguments, as `real_arguments`."""
        schema = getattr(call.target, "_schema", None)
        if schema is None or schema.is_mutable or not _REUSING.match(schema.name):
            return real_arguments(call)
        numbers: dict[tuple[torch.device, torch.dtype], int] = {}

        def make(t: torch.Tensor) -> torch.Tensor:
            kind = t.device, t.dtype
            numbers[kind] = numbers.get(kind, -1) + 1
            at = (*kind, numbers[kind])
            if t.layout is torch.strided and (at not in self._memory or self._memory[at].numel() < elements_spanned(t)):
                self._memory.pop(at, None)  # before the larger one is made
                self._memory[at] = _filled(t)
            return _laid_out(self._memory[at], t) if t.layout is torch.strided else made_up(t)

        return _each_once(call, make)


def real_arguments(call: OperatorCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The call's arguments with real tensors: one real tensor for each fake one, however often it is passed."""
    return _each_once(call, made_up)


def _each_once(call: OperatorCall, make: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    made = {id(t): torch.zeros(t.shape, dtype=t.dtype) for t in _read_on_host(call)}

    def known(t: torch.Tensor) -> torch.Tensor:
        if id(t) not in made:
            made[id(t)] = make(t)
        return made[id(t)]

    return tree_map_only(torch.Tensor, known, (call.args, call.kwargs))


def _read_on_host(call: OperatorCall) -> list[torch.Tensor]:
    """The fake tensors that a GPU's kernel reads on the host (`Operator.on_host`)."""
    schema: Any = getattr(call.target, "_schema", None)
    on_host = record_of(schema.name).on_host if schema is not None else ()
    if not on_host:
        return []
    given = [*zip((a.name for a in schema.arguments), call.args, strict=False), *call.kwargs.items()]
    return [t for name, t in given if name in on_host]


def made_up(t: torch.Tensor) -> torch.Tensor:
    """A real tensor laid out like t: floats 0.5 (never overflow or denormal), ints 0 (valid indices), bools True."""
    if t.layout is not torch.strided:
        raise TypeError(f"layout {t.layout}")
    return _laid_out(_filled(t), t)


def _filled(t: torch.Tensor) -> torch.Tensor:
    """Elements in memory for a tensor like t."""
    value = 0.5 if t.dtype.is_floating_point or t.dtype.is_complex else t.dtype == torch.bool
    return torch.full((elements_spanned(t),), value, dtype=t.dtype, device=t.device)


def _laid_out(memory: torch.Tensor, t: torch.Tensor) -> torch.Tensor:
    return memory.as_strided(t.shape, t.stride())


def new_bytes(out: Any, inputs: Any) -> int:
    """Bytes of the storages that results use and inputs do not."""
    old = storages_of(tensors_in(inputs))
    return sum(s.nbytes() for key, s in storages_of(tensors_in(out)).items() if s is not None and key not in old)


def learn_sizes(c: Captured) -> None:
    """Give every empty byte result in the graph its true size, if the op's device is present."""
    mode = joint_fake_mode(c.graph_module)
    known: dict[Any, list[int]] = {}
    for n in c.nodes:
        members = n.meta.get("val")
        if not isinstance(members, tuple | list) or mode is None:
            continue
        unknown = [i for i, t in enumerate(members) if isinstance(t, torch.Tensor) and _is_unknown(t)]
        if not unknown:
            continue
        key, run = as_call(n)
        if key not in known:
            try:
                out = run()
                known[key] = [x.numel() if isinstance(x, torch.Tensor) else 0 for x in out]
            except Exception as e:
                log.debug("size of what %s returns is not known: %s", n.target, e)
                continue
        grown = list(members)
        for i in unknown:
            with mode:
                grown[i] = torch.empty(known[key][i], dtype=torch.uint8, device=members[i].device)
            _replace(n, i, grown[i])
        n.meta["val"] = tuple(grown)


def _is_unknown(t: torch.Tensor) -> bool:
    return t.dtype == torch.uint8 and t.numel() == 0


def _replace(n: fx.Node, index: int, t: torch.Tensor) -> None:
    """Set the fake tensor of the nodes that take member `index` of the results of n, and of their aliases."""
    names = [u for u in n.users if getattr(u.target, "__name__", "") == "getitem" and u.args[1] == index]
    while names:
        u = names.pop()
        u.meta["val"] = t
        names += [w for w in u.users if w.target in rules.PASS_THROUGH]

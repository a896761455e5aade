"""A twin of a model and its sample, made of fake tensors: steps run on it take no memory and change nothing of the user's; and
an optimizer with its state, on the fake parameters of a twin.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer
from torch.overrides import TorchFunctionMode

from ...errors import UsageError
from .. import accept
from ..capture.known_values import KnownValues
from ..costs.resident import innermost, optimizers_by_name, tensors_of_state, without_hooks
from ..private import FakeTensor, FakeTensorMode, fake_like, fake_mode_of, is_fake
from ..run.own_forward import InPlaceOfForward
from ..tensors import tree
from ..undo.attributes import tensors_in_attributes

log = logging.getLogger(__name__)

CPU = torch.device("cpu")


@dataclass
class Twin:
    """Fake copies of a model, of the arguments of its call and of an optimizer, all on the CPU.

    inputs : the fake tensors among the arguments. optimizer : the copy of the user's own; None: the user gave a class or name.
    mode : the mode of the fake tensors. given, held : the real inputs and buffers, whose values forward may ask for; None: the
        inputs have no values.
    """

    model: nn.Module
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    inputs: list[torch.Tensor]
    optimizer: Optimizer | None
    mode: FakeTensorMode
    given: list[torch.Tensor] | None
    held: dict[str, torch.Tensor]

    def known_values(self) -> KnownValues:
        """A mode for one forward, that answers its questions about values of inputs and buffers."""
        return KnownValues(self.inputs, self.given, tensors_in_attributes(self.model), self.held)

    @property
    def trained(self) -> list[nn.Parameter]:
        """The distinct parameters that require grad."""
        return [p for p in self.model.parameters() if p.requires_grad]


def twin(model: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], optimizer: Any = None) -> Twin:
    """The twin of a model and of one call. Planned modules become plain ones.

    Raises
    ------
    UsageError : the model cannot be copied, or cannot be trained as it is; the message says what to do.
    """
    if next(model.parameters(), None) is not None:
        accept.parameters(model, [])
    tensors, spec = tree.flatten((args, kwargs))
    held = tensors_in_attributes(model)
    own = innermost(optimizer)
    stepped = [] if own is None else [p for group in own.param_groups for p in group["params"]]
    every = [*model.parameters(), *model.buffers(), *held.values(), *stepped, *tensors]
    mode = fake_mode_of(every) or FakeTensorMode(allow_non_fake_inputs=True)
    fakes = _Fakes(mode)
    for t in every:
        fakes.of(t)
    try:
        with fakes:
            copied, copied_optimizer = copy.deepcopy((model, own), fakes.memo)
    except Exception as e:
        raise UsageError(
            f"{type(model).__name__} cannot be copied: copy.deepcopy fails with {type(e).__name__}: {e}. An estimate steps a "
            "copy made of fake tensors, so that the model stays as it is; keep what cannot be copied outside of the module"
        ) from None
    for m in copied.modules():
        if isinstance(m.__dict__.get("forward"), InPlaceOfForward):
            m.__dict__["forward"].give_back(m)
    inputs = [fakes.of(t) for t in tensors]
    accept.parameters(copied, inputs)
    copied_args, copied_kwargs = tree.unflatten(inputs, spec)
    real = not any(t.is_meta or is_fake(t) for t in tensors)
    values = {k: t for k, t in held.items() if not t.is_meta and not is_fake(t)}
    return Twin(copied, copied_args, copied_kwargs, inputs, copied_optimizer, mode, tensors if real else None, values)


def storage_sizes(tensors: Iterable[torch.Tensor]) -> list[int]:
    """Bytes of each distinct storage of the tensors."""
    return [s.nbytes() for s in {id(s): s for t in tensors for s in [t.untyped_storage()]}.values()]


class _Fakes(TorchFunctionMode):
    """Makes one fake tensor on the CPU of each tensor. While it is on, copy.deepcopy makes them of tensors that it meets.

    memo : the fakes by id of their tensors, as copy.deepcopy takes them.
    """

    def __init__(self, mode: FakeTensorMode) -> None:
        super().__init__()
        self.memo: dict[int, Any] = {}
        self._mode = mode

    def of(self, t: torch.Tensor) -> Any:
        if id(t) not in self.memo:
            self.memo[id(t)] = self._made(t)
        return self.memo[id(t)]

    def _made(self, t: torch.Tensor) -> torch.Tensor:
        if t.device.type == "cpu" and not is_fake(t):
            return self._mode.from_tensor(t, static_shapes=True)
        with torch.no_grad():
            if is_fake(t) and t.device.type == "cpu":
                made: Any = t.detach()
            elif t.is_meta and not is_fake(t):  # tensors that share memory go on sharing it
                made = fake_like(self._mode, t.detach(), CPU)
            else:
                bare = torch.empty_strided(t.shape, t.stride(), dtype=t.dtype, device="meta")
                made = fake_like(self._mode, bare, CPU)
        if isinstance(t, nn.Parameter):
            return nn.Parameter(made, requires_grad=t.requires_grad)
        return made.requires_grad_(t.requires_grad)  # type: ignore[no-any-return]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__deepcopy__ and not isinstance(args[0], FakeTensor):
            t, memo = args
            # numbers, such as an optimizer's count of steps, keep their values
            memo[id(t)] = self.of(t) if t.dim() or t.is_meta else t.detach().clone()
            return memo[id(t)]
        return func(*args, **(kwargs or {}))


class OptimizerTwin:
    """The optimizers that step the fake parameters: the user's own copied, or made of a class or a name.

    refused : why a step cannot be run on fake tensors; "": it can.
    """

    def __init__(self, twin: Twin, given: Any, on_gpu: bool) -> None:
        self.refused = ""
        self._optimizers: list[Optimizer] = []
        trained: list[torch.Tensor] = []
        try:
            self._optimizers = list(_made(twin, given, on_gpu))
            trained = [p for o in self._optimizers for g in o.param_groups for p in g["params"] if p.requires_grad]
            for p in trained:
                p.grad = torch.empty_like(p)
        except Exception as e:  # an optimizer may do anything
            self._refuse(e)
        self.step()
        for p in trained:
            p.grad = None

    def step(self) -> None:
        """One step of every optimizer, unless one was refused before. The first one makes the state."""
        if self.refused:
            return
        try:
            with without_hooks():
                for o in self._optimizers:
                    o.step()
        except Exception as e:
            self._refuse(e)

    def _refuse(self, e: Exception) -> None:
        log.debug("the optimizer's step cannot be run on fake tensors: %s", e)
        self.refused = (str(e).strip().splitlines() or [type(e).__name__])[0]

    @property
    def state(self) -> list[torch.Tensor]:
        """The tensors of the state."""
        return [t for o in self._optimizers for t in tensors_of_state(o.state.values())]


def _made(twin: Twin, given: Any, on_gpu: bool) -> Iterator[Optimizer]:
    if twin.optimizer is not None:
        yield twin.optimizer
        return
    params = twin.trained
    if not params:
        return
    kind: Any = given
    options: dict[str, Any] = {}
    if isinstance(given, str):
        key = given.strip().lower()
        kind, options = optimizers_by_name()[key]
        if key == "muon":  # it takes matrices alone
            others = [p for p in params if p.ndim != 2]
            params = [p for p in params if p.ndim == 2]
            if others:
                yield _on(torch.optim.AdamW, others, {}, on_gpu)
            if not params:
                return
    yield _on(kind, params, options, on_gpu)


def _on(kind: Any, params: list[nn.Parameter], options: dict[str, Any], on_gpu: bool) -> Optimizer:
    made: Optimizer = kind(params, **options)
    if on_gpu:  # there PyTorch steps all parameters at once, with temporary memory for all of them
        for group in made.param_groups:
            if "foreach" in group and group["foreach"] is None and not group.get("fused"):
                group["foreach"] = True
    return made

"""One plain step of a twin: forward, loss, backward and the optimizer's step, as eager PyTorch runs them.

Eager's own code runs, on fake tensors: autograd saves the same tensors, Python's variables hold the same, and every storage
ends when it does in eager.
"""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ...errors import RekindleError
from ..capture.attempts import KINDS_MOST, failing_class
from ..capture.attention import AttentionOfGpu
from ..capture.capture import quiet
from ..capture.compiling_flag import as_if_compiling
from ..capture.trace_errors import trace_error
from ..costs import devices
from ..measure.measured_step import used_up
from ..operators.eager_strides import eager_strides
from ..private import FakeTensorMode, disable_autocast
from ..run.shared_casts import block_of_its_own
from ..situation.module_paths import paths_followed
from ..tensors.loss import default_loss
from ..undo.kept import kept
from .kernel_memory import KernelMemory
from .twin import OptimizerTwin, Twin, storage_sizes, twin
from .watch import BACKWARD, OPTIMIZER, Moment, StepWatch

LossOf = Callable[[Any], torch.Tensor]


@dataclass(frozen=True)
class StepOptions:
    """How the step runs.

    optimizer : an optimizer, its class or a name; None: no optimizer steps. loss : result of the model -> scalar.
    gradients : as in `rekindle.estimate`. device : its roofline gives seconds; on a GPU its kernels run.
    rounded : bytes of a storage -> bytes that the allocator takes for it.
    """

    optimizer: Any
    loss: LossOf | None
    gradients: str
    device: devices.Device
    rounded: Callable[[int], int]

    @property
    def keeps_gradients(self) -> bool:
        return self.gradients == "kept"


@dataclass(frozen=True)
class SteppedTwin:
    """A step of a twin that ran.

    moments : one for each operator. held : bytes by module that forward left for backward, and results. *_bytes : of what is
    older than the step. refused : why the optimizer's step did not run; "": it ran.
    """

    moments: list[Moment]
    held: dict[str, int]
    parameter_bytes: int
    buffer_bytes: int
    input_bytes: int
    gradient_bytes: int
    resident_rounding: int
    refused: str


def step_of_twin(
    model: nn.Module, call: tuple[tuple[Any, ...], dict[str, Any]], options: StepOptions, memory: KernelMemory
) -> SteppedTwin:
    """Run the step with this call's arguments on a twin of the model.

    Libraries that look at the values of tensors, or choose kernels without a shape rule, are told that they are being compiled,
    first the classes of submodules that fail, then all.

    Raises
    ------
    TraceError : the step fails on fake tensors; the message names the user's line.
    UsageError : the model cannot be copied or trained as it is.
    """
    told: list[type[nn.Module]] = []
    failed: Exception | None = None
    while len(told) <= KINDS_MOST:
        made = twin(model, *call, options.optimizer)
        try:
            with as_if_compiling(told):
                return _run(made, options, memory)
        except RekindleError:
            raise
        except Exception as e:
            failed = failed or e
            kind = failing_class(e, made.model)
            if kind is None or kind in told:
                break
            told.append(kind)
    try:
        with as_if_compiling(None):
            return _run(twin(model, *call, options.optimizer), options, memory)
    except Exception:
        assert failed is not None
        raise trace_error(failed, model) from failed


def _run(t: Twin, o: StepOptions, memory: KernelMemory) -> SteppedTwin:
    model, parameters = t.model, t.trained
    optimizer = None if o.optimizer is None else OptimizerTwin(t, o.optimizer, o.device.capability is not None)
    for x in [*model.parameters(), *t.inputs]:
        x.grad = torch.empty_like(x) if o.keeps_gradients and x.requires_grad and isinstance(x, nn.Parameter) else None
    gradients = [p.grad for p in parameters if p.grad is not None]
    state = [] if optimizer is None else optimizer.state
    buffers = list(model.buffers())
    known = [*model.parameters(), *buffers, *t.inputs, *gradients, *(s for s in state if isinstance(s, torch.Tensor))]
    watch = StepWatch(known, o.rounded, o.device, memory)
    FakeTensorMode.cache_clear()  # results that another mode cached may lack the sizes of storages
    gc.collect()
    undone = kept(model, [*t.args, *t.kwargs.values()], captures=True, fake=True)  # what hooks of the user's reach
    counted = parameters if o.gradients == "fresh" else []
    consumed = used_up(parameters if o.gradients == "consumed" else [])
    with undone, block_of_its_own(), _surroundings(t, o), watch.gradients_counted(counted), consumed, watch:
        with t.mode:
            with paths_followed(model, watch.paths.note), t.known_values():
                result = model(*t.args, **t.kwargs)
            value = o.loss(result) if o.loss else default_loss(result, (t.args, t.kwargs), t.inputs)
            torch.clear_autocast_cache()  # as a loop does that leaves autocast before backward
            watch.refresh()
            held = watch.held_by()
            watch.phase = BACKWARD
            with disable_autocast():
                value.backward()  # type: ignore[no-untyped-call]
        watch.refresh()
        if optimizer is not None:
            watch.phase = OPTIMIZER
            optimizer.step()
    parameter_bytes = sum(storage_sizes(model.parameters()))
    return SteppedTwin(
        moments=watch.moments,
        held=held,
        parameter_bytes=parameter_bytes,
        buffer_bytes=sum(storage_sizes([*model.parameters(), *buffers])) - parameter_bytes,
        input_bytes=sum(storage_sizes(t.inputs)),
        gradient_bytes=sum(p.numel() * p.element_size() for p in parameters),
        resident_rounding=sum(o.rounded(n) - n for n in storage_sizes(known)),
        refused="" if optimizer is None else optimizer.refused,
    )


@contextlib.contextmanager
def _surroundings(t: Twin, o: StepOptions) -> Iterator[None]:
    """Gradients on, strides of eager's kernels, and a GPU's kernels where the step is for one."""
    with contextlib.ExitStack() as stack:
        stack.enter_context(quiet())
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(eager_strides(t.mode))
        if o.device.capability is not None:
            stack.enter_context(AttentionOfGpu(o.device.capability))
            stack.enter_context(DropoutOfGpu())
        yield


class DropoutOfGpu(TorchFunctionMode):
    """A mode in which dropout of tensors on the CPU runs as a GPU's fused kernel, which saves its mask as bytes.

    The CPU's own saves a mask of floats.
    """

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is F.dropout or func is torch.dropout:
            x, p, train = _dropout_arguments(*args, **kwargs)
            if train and 0 < p < 1:
                return torch.native_dropout(x, p, True)[0]
        return func(*args, **kwargs)


def _dropout_arguments(
    input: Any, p: float = 0.5, training: bool = True, inplace: bool = False, train: bool = True
) -> Any:
    return input, p, training and train and not inplace

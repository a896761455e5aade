"""PyTorch's own chunked linear cross-entropy in place of a language model's head and loss.

`torch.nn.functional.linear_cross_entropy` with options computes the head's result, the loss and both gradients chunk by
chunk in forward; backward scales the gradients. So no logits [tokens, vocabulary] exist, and the model returns its loss
alone. PyTorch chooses the size of a chunk.

Instruments see nothing of the operator's inside, and on tensors without data it runs nothing. While instruments watch or
tensors are fake, its own Python body therefore runs operator by operator.

Source: torch.nn.modules.linear_cross_entropy, torch 2.13.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

import more_models
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from rekindle import zoo
from rekindle.bench.methods import NotApplicable
from rekindle.torch.private import TorchDispatchMode, modes_are_on

from .checkpointing import replaced
from .private import chunked_cross_entropy

# fields of a configuration by which transformers change logits between head and loss
CHANGED_LOGITS = ("final_logit_softcapping", "logit_scale", "logits_scaling")
OWN = (f"{zoo.__name__}.", f"{more_models.__name__}.")  # packages of models that are written here


@contextmanager
def chunked_loss(model: nn.Module) -> Iterator[None]:
    """Inside the context, the model's forward returns {"loss": []}, by the chunked operator.

    Raises
    ------
    NotApplicable : this torch has no such operator, or the model is neither a causal language model of transformers nor a model
        of the zoo with a head and a loss of tokens.
    """
    if chunked_cross_entropy() is None:
        raise NotApplicable(f"PyTorch {torch.__version__} has no chunked linear_cross_entropy; it came with 2.13")
    if _is_causal(model):
        with replaced({model: partial(_causal_forward, model)}):
            yield
    elif type(model).__module__.startswith(OWN) and isinstance(getattr(model, "head", None), nn.Linear):
        own: Callable[..., Any] = model.forward
        head: Any = model.head
        with replaced({model: partial(_zoo_forward, own, head), head: lambda x: x}):
            yield
    else:
        raise NotApplicable(
            "the model has no head with a loss of tokens that PyTorch's chunked operator could take the place of"
        )


def _is_causal(model: Any) -> bool:
    """Whether the model is a causal language model of transformers: a linear head, and a loss of labels shifted by one."""
    if getattr(model, "loss_type", None) != "ForCausalLM" or not isinstance(model.get_output_embeddings(), nn.Linear):
        return False
    return not any(getattr(model.config, name, None) for name in CHANGED_LOGITS)


def _causal_forward(model: Any, input_ids: Tensor, labels: Tensor, **more: Any) -> dict[str, Tensor]:
    """input_ids, labels : [batch, length]. Labels are shifted as in transformers' loss: token i is to predict label i + 1, and
    the last one predicts nothing."""
    hidden: Tensor = model.base_model(input_ids, **more)[0]
    targets = F.pad(labels, (0, 1), value=-100)[..., 1:]
    return {"loss": _loss(hidden.flatten(0, 1), model.get_output_embeddings(), targets.flatten())}


def _zoo_forward(own: Callable[..., Any], head: nn.Linear, *args: Any, **kwargs: Any) -> dict[str, Tensor]:
    with _LossOfHead(head):
        return {"loss": own(*args, **kwargs)["loss"]}


class _LossOfHead(TorchFunctionMode):
    """A context in which the cross-entropy of a head's inputs is the one of its results."""

    def __init__(self, head: nn.Linear) -> None:
        super().__init__()
        self.head = head

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is F.cross_entropy:
            return _loss(args[0], self.head, args[1])
        return func(*args, **(kwargs or {}))


def _loss(hidden: Tensor, head: nn.Linear, targets: Tensor) -> Tensor:
    """The mean cross-entropy. hidden : [tokens, channels]. targets : [tokens]; -100 counts for nothing."""
    functions: Any = F  # torch before 2.13 lacks these two
    modules: Any = nn
    options = modules.LinearCrossEntropyOptions()
    with _InTheOpen() if modes_are_on() else nullcontext():
        found: Tensor = functions.linear_cross_entropy(
            hidden, head.weight, targets, linear_bias=head.bias, options=options
        )
    return found


class _InTheOpen(TorchDispatchMode):
    """A context in which the operator runs its Python body, so that modes outside of it see each operator of that body."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = chunked_cross_entropy()
        if known is not None and func is known[0]:
            return known[1](*args, **(kwargs or {}))
        return func(*args, **(kwargs or {}))

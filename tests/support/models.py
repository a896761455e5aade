"""Small models that nobody tuned the library for: name -> a function that returns (model, sample).

Most return one scalar loss, so that the step's peak is the plan's and not the loss function's; activations are some
hundred KiB, so that a few bytes of bookkeeping are far below a per cent of them.
"""

from __future__ import annotations

# each enters its models
import models_by_hand  # noqa: F401
import models_of_kinds  # noqa: F401
import models_of_transformers  # noqa: F401
import models_vision_and_sequences  # noqa: F401
from model_tables import HF, MODELS, call, context, loss_of, make, tensors

__all__ = ["HF", "MODELS", "call", "context", "loss_of", "make", "tensors"]

"""On tensors without data, the branches that a step takes with them."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..torch.capture.known_values import KnownValues


@contextmanager
def data_branches() -> Iterator[None]:
    """Meanwhile what a fake step asks of values that follow from shapes is answered, as it is while capturing.

    Transformers asks whether its mask masks anything, but not of a fake tensor: there it writes the mask out and repeats
    keys and values, which no step with data does. It is told that what is known is no fake tensor.
    """
    known = KnownValues((), None)
    library = sys.modules.get("transformers.utils.import_utils")
    asks = getattr(library, "is_fake_tensor", None)
    if asks is not None:
        library.is_fake_tensor = lambda x: asks(x) and not known.knows(x)  # type: ignore[union-attr]
    try:
        with known:
            yield
    finally:
        if asks is not None:
            library.is_fake_tensor = asks  # type: ignore[union-attr]

"""Makes a step on fake tensors take the branches that it takes on real data.

`rekindle bench` measures the suites modern and deep on fake tensors (full size, no GPU). Without this, their plain steps, and
so all rows, would be larger than any real step's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager

from ..torch.capture.known_values import KnownValues


@contextmanager
def data_branches() -> Iterator[None]:
    """Inside the context, questions about values that follow from shapes are answered, as during capture.

    Transformers checks whether its mask masks anything, but skips the check for fake tensors: it then materialises the mask and
    repeats keys and values, which no step on real data does. Here, `transformers` no longer takes a fake tensor of known value
    for a fake one.
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

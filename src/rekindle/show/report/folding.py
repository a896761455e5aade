"""Paths of repeated modules as one pattern: "blocks.0.attention" and "blocks.1.attention" as "blocks.*.attention"."""

from __future__ import annotations

import re

_NUMBER = re.compile(r"(?<![^.])\d+(?![^.])")


def folded(path: str) -> str:
    """The path with a star in place of every part that is a number.

    >>> folded("blocks.11.attention.query"), folded("layer1.0.conv1"), folded("conv2d")
    ('blocks.*.attention.query', 'layer1.*.conv1', 'conv2d')
    """
    return _NUMBER.sub("*", path)

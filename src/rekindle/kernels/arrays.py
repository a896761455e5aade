"""A graph as flat arrays, which compiled loops take."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

RUN, FREE, OFFLOAD, FETCH = 0, 1, 2, 3  # kinds of the steps of a schedule


class Arrays(NamedTuple):
    """The graph as flat arrays for compiled loops; rows of inputs, outputs and inplace are compressed."""

    bytes: np.ndarray  # int64 [values]; inputs of the graph count 0 (they are in resident_bytes)
    producer: np.ndarray  # int64 [values]; -1 for inputs of the graph
    in_ptr: np.ndarray
    in_ids: np.ndarray
    out_ptr: np.ndarray
    out_ids: np.ndarray
    inplace_ptr: np.ndarray
    inplace_ids: np.ndarray
    workspace: np.ndarray  # int64 [ops]
    recompute: np.ndarray  # bool [ops]
    keep: np.ndarray  # bool [values]
    boundary: int  # op id, -1 where the graph has none


class Rows(NamedTuple):
    """Rows of ids of different lengths in two flat arrays: row i is ids[ptr[i] : ptr[i + 1]]."""

    ptr: np.ndarray  # int64 [rows + 1]
    ids: np.ndarray  # int64


def compressed_rows(rows: Iterable[Sequence[int]]) -> Rows:
    """The rows in two flat arrays."""
    rows = list(rows)
    ptr = np.zeros(len(rows) + 1, np.int64)
    np.cumsum([len(r) for r in rows], out=ptr[1:])
    return Rows(ptr, np.array([x for r in rows for x in r], np.int64))

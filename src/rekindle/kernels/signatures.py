"""The kernels on the way to a first plan, with the types of their arguments, so that they can be compiled ahead of any call.

`tests/unit/test_kernels.py` compares this list with the kernels that a plan compiles.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import from_dtype, types

from . import (
    blocks,
    dtr,
    hong,
    judge,
    liveness,
    modes,
    moves,
    order,
    rotor,
    scoring,
    search,
    sequence,
    slots,
    waiting,
)
from .arrays import Arrays, Rows
from .objective import Objective

INT, FLOAT, BOOL = types.int64, types.float64, types.boolean


def array(dtype: type, dimensions: int = 1) -> Any:
    """numba's type of a contiguous array."""
    return types.Array(from_dtype(np.dtype(dtype)), dimensions, "C")


def fields(kind: type, *of: Any) -> Any:
    """numba's type of a NamedTuple with fields of these types."""
    return types.BaseTuple.from_types(of, kind)


INTS, INTS_2D, INTS_3D = (array(np.int64, n) for n in (1, 2, 3))
SHORT, SHORT_2D = (array(np.int32, n) for n in (1, 2))
TINY, TINY_2D = (array(np.int8, n) for n in (1, 2))
FLOATS, FLOATS_2D, FLOATS_3D = (array(np.float64, n) for n in (1, 2, 3))
BOOLS = array(np.bool_)

ROWS = fields(Rows, INTS, INTS)
GRAPH = fields(Arrays, *[INTS] * 9, BOOLS, BOOLS, INT)
OBJECTIVE = fields(Objective, *[FLOAT] * 6)
SCRATCH = fields(modes.Scratch, BOOLS, BOOLS, INTS, INTS, BOOLS, INTS)
MARKS = fields(blocks.Marks, *[BOOLS] * 6)
POINT = fields(scoring.Point, TINY, INTS)
INSTANCE = fields(
    scoring.Instance, GRAPH, ROWS, FLOATS, FLOAT, BOOLS, ROWS, fields(order.Regions, INT, INT), INT
)  # fmt: skip
POINT_BINS = fields(search.PointBins, FLOATS, FLOATS, FLOATS, TINY_2D, INTS_2D)
STAGES = fields(
    rotor.Stages, INTS_3D, INTS_3D, INTS_2D, FLOATS_2D, INTS_3D, INTS_3D, FLOATS_3D, INTS_3D, FLOATS_3D, INTS_3D,
    FLOATS_3D,
)  # fmt: skip
SEQUENCE = fields(
    slots.Sequence, SHORT, SHORT_2D, SHORT_2D, SHORT, SHORT, SHORT_2D, INTS_2D, INTS, INTS, FLOATS
)  # fmt: skip
OPS = fields(slots.Ops, INTS_2D, INTS_2D, INTS, FLOATS, INT)
RUN_BINS = fields(moves.SequenceBins, FLOATS, FLOATS, FLOATS, SHORT_2D, INTS)

# From the long ones that a plan needs last to the short ones that it needs first: a second process begins at the front while
# a plan comes from the back.
KERNELS: list[tuple[Any, tuple[Any, ...]]] = [
    (search.anneal, (POINT, INTS, INTS, INSTANCE, OBJECTIVE, POINT_BINS, INT, FLOAT, INT)),
    (rotor.sequence, (STAGES, FLOATS_3D, INT, FLOATS_3D, INT, INT, INT)),
    (moves.anneal, (SEQUENCE, OPS, OBJECTIVE, RUN_BINS, FLOAT, INT, FLOAT, INT)),
    (sequence.fill, (SEQUENCE, INTS, OPS)),
    (rotor.solve, (STAGES, FLOATS_3D, INT, INT)),
    (scoring.evaluate, (POINT, INSTANCE, SCRATCH)),
    (search.record, (POINT_BINS, POINT, FLOAT, FLOAT)),
    (dtr.simulate, (INTS, INT, FLOATS, INTS, INTS, INTS, GRAPH)),
    (waiting.rows, (INT, BOOLS, FLOATS, GRAPH)),
    (waiting.least_waiting, (FLOATS, FLOATS, FLOATS)),
    (waiting.least_cost, (FLOATS, FLOATS, FLOATS)),
    (waiting.depends, (INT, GRAPH)),
    (order.whole, (INTS, INTS, INT, INT, INTS, ROWS, INTS)),
    (hong.revised_cuts, (FLOATS, FLOATS)),
    (order.hoist, (INTS, INT, ROWS, GRAPH)),
    (blocks.price, (INTS, TINY_2D, ROWS, GRAPH, GRAPH, MARKS, FLOATS, INT, SCRATCH)),
    (blocks.outline, (GRAPH, INT)),
    (blocks.missing, (INTS, BOOLS, GRAPH)),
    (blocks.rows, (INTS, INT)),
    (blocks.localise, (INTS, GRAPH, INTS)),
    (liveness.prune, (INTS, GRAPH)),
    (modes.peak, (INTS, INT, FLOAT, BOOLS, GRAPH, BOOLS)),
    (modes.expand, (INTS, TINY, ROWS, GRAPH, SCRATCH)),
    (liveness.lower, (INTS, BOOL, BOOLS, GRAPH)),
    (judge.judge, (INTS_2D, GRAPH)),
]

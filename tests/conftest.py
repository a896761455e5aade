"""What many tests start from; and one thread per test process: two processes of two threads each, on two cores, wait for
each other most of the time."""

import os
from typing import Any

import pytest

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")


@pytest.fixture
def pair() -> Any:
    """(plain, planned, input)."""
    from pairs import planned_pair  # torch reads the variables above when it is imported

    return planned_pair()

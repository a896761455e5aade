"""How many examples property tests try; and one thread per test process: two processes of two threads each, on two cores,
wait for each other most of the time."""

import copy
import gc
import os
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("MKL_NUM_THREADS", "1")

slow_is_fine = [HealthCheck.too_slow]  # the first example of a test compiles kernels
# `make test`: few examples, the same ones in every run. A test that asks for more than the usual number gets its share.
settings.register_profile("test", max_examples=25, derandomize=True, deadline=None, suppress_health_check=slow_is_fine)
# `make sweep`: many examples, other ones in every run; a failure prints how to see it again.
settings.register_profile("sweep", max_examples=200, print_blob=True, deadline=None, suppress_health_check=slow_is_fine)
settings.load_profile("test")  # --hypothesis-profile=sweep loads the other one

if "PYTEST_XDIST_WORKER" in os.environ:
    from compile_once import compile_once

    compile_once()


@pytest.fixture(autouse=True, scope="module")
def quick_collections() -> None:
    """Each measured step collects garbage twice, and torch alone keeps so many objects that a collection takes a tenth of
    a second: what is there already is left out from now on."""
    gc.freeze()


@pytest.fixture
def pair() -> Any:
    """(plain, planned, input)."""
    from pairs import planned_pair  # torch reads the variables above when it is imported

    return copy.deepcopy(planned_pair())

"""How many examples property tests try; where tests keep costs and plans; and one thread per test process: two processes of
two threads each, on two cores, wait for each other most of the time."""

import copy
import gc
import os
import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
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


@pytest.fixture(autouse=True, scope="session")
def cache_of_tests(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A test process keeps measured costs in a folder of its own, not in the user's, and remembers no plans: no test's plan
    comes from another test, nor from its own first search. Tests of the memory turn it on (`memory_of_plans`)."""
    from rekindle import allowance
    from rekindle.planning import remembered

    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REKINDLE_CACHE", str(folder))
        patch.setattr(remembered, "SETTINGS", replace(remembered.SETTINGS, files_most=0))
        # Tests on a busy machine plan as on an idle one; those of this rule set seconds of their own.
        patch.setattr(allowance, "SETTINGS", replace(allowance.SETTINGS, mid_run_least_s=20.0))
        yield folder


@pytest.fixture(autouse=True)
def no_plans_of_other_tests(cache_of_tests: Path) -> None:
    """Processes that a test starts remember their plans: those of earlier tests are gone."""
    for folder in ("plans", "parts"):
        shutil.rmtree(cache_of_tests / folder, ignore_errors=True)


@pytest.fixture
def memory_of_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Plans are remembered, in a folder of this test's own: its path."""
    from rekindle.planning import remembered

    monkeypatch.setenv("REKINDLE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered, "SETTINGS", remembered.MemorySettings())
    return tmp_path / "cache" / remembered.FOLDER


@pytest.fixture(params=["recomputing", "copying"])
def pair(request: pytest.FixtureRequest) -> Any:
    """(plain, planned, input). The plan recomputes, or copies values to the host and recomputes."""
    from pairs import planned_pair  # torch reads the variables above when it is imported

    return copy.deepcopy(planned_pair(request.param == "copying"))

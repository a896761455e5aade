"""Kernels compiled in a second process: each once, by whoever comes first, and nothing is left behind."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marks import sweep
from rekindle.kernels.shared_work import PAUSE, Share

ENDS_WITHIN_S = 60

GUARDS = """
import os, sys, tempfile
from rekindle.kernels import companion, shared_work

def begun():
    companion.start()
    return companion._companion is not None

home = tempfile.gettempdir()
os.environ.pop("PYTEST_XDIST_WORKER", None)
python, sys.executable = sys.executable, "/nowhere/python"
assert not begun() and not shared_work.going_on()
sys.executable = ""
assert not begun()
sys.executable = python
os.environ["LOCAL_RANK"] = "1"
assert not begun()
del os.environ["LOCAL_RANK"]
assert os.listdir(home) == []
if hasattr(os, "sched_getaffinity") and len(os.sched_getaffinity(0)) > 1:
    assert begun() and begun() and shared_work.going_on()
    folder = companion._companion.folder
    with companion.paused():
        assert (folder / shared_work.PAUSE).exists()
    assert not (folder / shared_work.PAUSE).exists()
    if not os.fork():
        assert not shared_work.going_on()
        companion._companion.end()
        os._exit(0)
    assert os.wait()[1] == 0 and folder.exists()
    companion._companion.end()
    assert not shared_work.going_on() and not folder.exists()
print("well")
"""

KILLED = """
import os, signal
from rekindle.kernels import companion
os.environ.pop("PYTEST_XDIST_WORKER", None)
companion.start()
print(companion._companion.process.pid, flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""

SHARED = """
import os, sys
os.environ.pop("PYTEST_XDIST_WORKER", None)
import rekindle
from rekindle.kernels import companion
from rekindle.kernels.signatures import KERNELS
from rekindle.planning.warming import training_step
companion.start()
lines = []
plan = rekindle.plan(training_step(24), 0.6, cost="unit", effort="quick", cache=False, progress=lines.append)
assert any(line.startswith("compiling the search") for line in lines), lines
companion.wait()
done = {p.name for p in companion._companion.folder.glob("*.done")}
taken = {p.name for p in companion._companion.folder.iterdir() if p.suffix != ".done"}
assert taken == {name.removesuffix(".done") for name in done}
mine = sum(sum(kernel.stats.cache_misses.values()) for kernel, _ in KERNELS)
theirs = sum(sum(kernel.stats.cache_hits.values()) for kernel, _ in KERNELS)
assert mine and theirs, (mine, theirs)
assert not companion.remaining()
print(plan.schedule.steps)
"""

LISTED = """
import importlib, pkgutil
import rekindle
from rekindle import kernels
from rekindle.kernels.signatures import KERNELS
from rekindle.planning.warming import training_step
for goal in ({"max_overhead": 0.2}, {"minimize": "memory"}):
    rekindle.plan(training_step(24), cost="unit", effort="quick", cache=False, **goal)
listed = {kernel: types for kernel, types in KERNELS}
called = set()
for module in pkgutil.iter_modules(kernels.__path__):
    for kernel in vars(importlib.import_module(f"rekindle.kernels.{module.name}")).values():
        if kernel.__class__.__name__ == "CPUDispatcher" and kernel.signatures:
            if kernel in listed:
                assert kernel.signatures == [listed[kernel]], (kernel, kernel.signatures)
                called.add(kernel)
            else:
                print(kernel.py_func.__module__.rpartition(".")[2] + "." + kernel.py_func.__name__)
assert len(called) > 20, called
"""


def python(script: str, **env: str) -> str:
    ran = subprocess.run(
        [sys.executable, "-c", script], env={**os.environ, **env}, capture_output=True, text=True, timeout=600
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_who_comes_first_compiles_and_the_other_waits(tmp_path: Path) -> None:
    first, second = Share(tmp_path, lambda: True), Share(tmp_path, lambda: True)
    assert first.take("a")
    assert first.take("a")
    assert not second.take("a")
    assert second.taken("a")
    assert second.take("b")
    (tmp_path / PAUSE).touch()
    first.finish("a")
    second.wait("a")
    assert not (tmp_path / PAUSE).exists()  # who waits needs the other to go on


def test_nobody_waits_for_a_process_that_has_ended(tmp_path: Path) -> None:
    first, second = Share(tmp_path, lambda: True), Share(tmp_path, lambda: False)
    assert first.take("a")
    second.wait("a")
    for file in tmp_path.iterdir():
        file.unlink()
    tmp_path.rmdir()
    assert second.take("a")
    second.finish("a")


def test_a_second_process_starts_where_it_helps_and_leaves_nothing_behind(tmp_path: Path) -> None:
    for name in ("numba", "temporary"):
        (tmp_path / name).mkdir()
    out = python(GUARDS, NUMBA_CACHE_DIR=str(tmp_path / "numba"), TMPDIR=str(tmp_path / "temporary"))
    assert out == "well\n"
    assert not list((tmp_path / "temporary").iterdir())


@pytest.mark.skipif(not Path("/proc").is_dir(), reason="looks at the process in /proc")
def test_the_second_process_ends_when_the_first_was_killed(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path / "temporary")}
    ran = subprocess.run([sys.executable, "-c", KILLED], env=env, capture_output=True, text=True, timeout=600)
    process = Path("/proc") / ran.stdout.strip()
    until = time.monotonic() + ENDS_WITHIN_S
    while _runs(process) and time.monotonic() < until:
        time.sleep(0.05)
    assert not _runs(process)
    assert not list((tmp_path / "temporary").iterdir())


def _runs(process: Path) -> bool:
    try:
        return (process / "stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_the_listed_types_are_those_of_a_plan() -> None:
    """Another type would be compiled a second time, after the second process has compiled the listed one."""
    other = set(python(LISTED).split()) - {"scoring.evaluate_within"}  # which only kernels call
    assert {name.partition(".")[0] for name in other} <= {"needed", "watch"}  # of the exact search, for small graphs


@sweep
def test_two_processes_compile_each_kernel_once(tmp_path: Path) -> None:
    (tmp_path / "temporary").mkdir()
    env = {"NUMBA_CACHE_DIR": str(tmp_path), "TMPDIR": str(tmp_path / "temporary")}
    first = python(SHARED, **env)
    assert not list((tmp_path / "temporary").iterdir())
    assert python(SHARED.partition("assert any")[0] + "print(plan.schedule.steps)", **env) == first


@sweep
def test_warm_compiles_all_that_a_plan_needs(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "rekindle", "warm"]
    env = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    for expected in ("compiled ", "nothing to compile: all is in "):
        ran = subprocess.run(command, env=env, capture_output=True, text=True, timeout=900, check=True)
        assert ran.stdout.startswith(expected)

"""The GPU benchmark's script: no job loses another's rows, and on the CPU it runs to its end."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from gpu import driver
from gpu.cases import Case, repeated, step_cases, with_gradients
from gpu.jobs import SECONDS, Job, RunOptions, jobs, rows_file
from gpu.rows import Row, appended, bench_row, newest, read
from gpu.steps import by_hand
from gpu.suite import marked, outcomes
from torch import nn

from marks import sweep
from rekindle import zoo
from rekindle.bench.files import checked
from rekindle.torch.tensors.precision import deterministic
from rekindle.zoo import seeds
from test_gpu_largest import GIB, markdown

ROOT = Path(__file__).parents[2]


def job(name: str, code: str, allowance: float = 60.0, estimate: float = 0.0) -> Job:
    return Job(name, "steps", [sys.executable, "-c", code], estimate, allowance)


def ran(todo: list[Job], work: Path, seconds: float, workers: int = 2) -> dict[str, list[Row]]:
    found: dict[str, list[Row]] = {}
    driver.run(
        todo,
        work,
        time.monotonic() + driver.SETTINGS.grace_s + seconds,
        workers,
        lambda j, rows: found.update({j.name: rows}),
    )
    return found


def write(work: Path, name: str, then: str = "") -> str:
    """A program that writes a row and then does something else."""
    path = str(rows_file(work, name))
    return f'open({path!r}, \'a\').write(\'{{"part": "steps", "status": "ok", "seen": 1}}\\n\'); {then or "pass"}'


def test_a_job_that_fails_or_hangs_loses_no_rows(tmp_path: Path) -> None:
    todo = [
        job("steps:good", write(tmp_path, "steps:good")),
        job("steps:bad", write(tmp_path, "steps:bad", "raise MemoryError('no room')")),
        job("steps:slow", write(tmp_path, "steps:slow", "import time; time.sleep(100)"), allowance=1.0),
        job("steps:next", write(tmp_path, "steps:next")),
    ]
    begin = time.monotonic()
    found = ran(todo, tmp_path, 50.0)
    assert time.monotonic() - begin < 30
    assert all(rows[0].get("seen") == 1 for rows in found.values())
    assert [found[f"steps:{n}"][-1]["status"] for n in ("good", "bad", "slow", "next")] == [
        "ok",
        "failed",
        "failed",
        "ok",
    ]
    assert "no room" in found["steps:bad"][-1]["note"]
    assert "its time was up" in found["steps:slow"][-1]["note"]


def test_what_the_deadline_leaves_out_is_said(tmp_path: Path) -> None:
    todo = [
        job("steps:hangs", write(tmp_path, "steps:hangs", "import time; time.sleep(100)")),
        job("largest:resnet50:16 GiB", "pass", estimate=20.0),
        job("steps:behind", "pass"),
    ]
    found = ran(todo, tmp_path, 2.0, workers=1)
    assert found["steps:hangs"][0]["seen"] == 1
    assert found["steps:hangs"][-1]["status"] == "failed"
    left = found["largest:resnet50:16 GiB"][-1]
    assert (left["status"], left["model"], left["cap"]) == ("left out", "resnet50", "16 GiB")
    assert found["steps:behind"][-1]["status"] == "left out"
    text = markdown(
        {"date": "2026-01-01", "command": "python", "seconds": 1.0}, [r for rows in found.values() for r in rows]
    )
    assert "resnet50, 16 GiB: left out" in text


def test_a_torn_last_row_is_passed_over_and_later_rows_win(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    for peak, ratio in ((2**20, 1.0), (2**21, float("nan")), (3 * 2**20, 3.0)):
        row = {"part": "steps", "model": "a", "method": "plain", "status": "ok", "note": "", "peak_bytes": peak}
        appended(path, row | {"ratio": ratio})
    with path.open("a") as f:
        f.write('{"part": "st')
    assert [(r["peak_mb"], r["wall_ratio"]) for r in read(path)] == [(1.0, 1.0), (2.0, None), (3.0, 3.0)]
    assert [r["peak_mb"] for r in newest(read(path))] == [3.0]


def test_a_measurement_is_a_row_of_rekindle_bench() -> None:
    step = {"part": "steps", "model": "m", "method": "half", "status": "infeasible", "note": "InfeasibleBudget: no"}
    row = checked(bench_row(step))
    assert (row["suite"], row["status"], row["outcome"], row["cost"]) == (
        "gpu-steps",
        "failed",
        "infeasible",
        "seconds",
    )
    assert {"date", "hardware", "versions", "commit"} <= set(row)
    capped = {
        "part": "largest",
        "model": "m",
        "method": "plain",
        "cap": "24 GiB",
        "cap_bytes": 24 * GIB,
        "status": "ok",
    }
    row = checked(bench_row(capped | {"note": "", "peak_bytes": GIB, "per_second": 1.0}))
    assert (row["model"], row["case"], row["peak_mb"], row["cap_mb"]) == ("m under 24 GiB", "m", 1024.0, 24 * 1024.0)
    assert bench_row({"part": "tests", "name": "t", "status": "ok"}) == {"part": "tests", "name": "t", "status": "ok"}


def test_a_job_that_runs_alone_shares_the_device_with_none(tmp_path: Path) -> None:
    def logged(name: str, alone: bool = False) -> Job:
        code = f"import os, time; f = open({str(tmp_path / 'log')!r}, 'a', buffering=1); f.write('begin {name}\\n')"
        code += f"; time.sleep(0.5); f.write('end {name} ' + os.environ['{SECONDS}'] + '\\n')"
        return Job(f"steps:{name}", "steps", [sys.executable, "-c", code], 0.0, 60.0, alone=alone)

    ran([logged("a"), logged("b"), logged("c", True), logged("d", True)], tmp_path, 40.0, workers=4)
    lines = [line.split() for line in (tmp_path / "log").read_text().splitlines()]
    order = [" ".join(line[:2]) for line in lines]
    assert order[4:] == ["begin c", "end c", "begin d", "end d"]
    seconds = {line[1]: float(line[2]) for line in lines if line[0] == "end"}
    assert seconds["c"] < 21 < seconds["d"] <= 40  # c leaves d its share


def test_the_largest_cap_is_searched_alone_and_last(tmp_path: Path) -> None:
    def alone(device: float | None) -> list[str]:
        todo = jobs(RunOptions("cuda", False, tmp_path, 9.0, 15.0, device and int(device * GIB)))
        assert [j.alone for j in todo] == sorted(j.alone for j in todo)
        return sorted({j.name.split(":")[2] for j in todo if j.alone and j.part == "largest"})

    assert alone(79.2) == alone(139.8) == alone(178.4) == ["80 GiB"]
    assert alone(31.4) == ["16 GiB", "24 GiB"]
    assert alone(None) == ["16 GiB", "24 GiB", "80 GiB"]


def script() -> Any:
    """benchmarks/gpu.py, whose name the package beside it has too."""
    spec = importlib.util.spec_from_file_location("gpu_script", ROOT / "benchmarks" / "gpu.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_was_left_out_is_the_exit_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pandas")
    program = script()

    def main(*names: str) -> int:
        def some(todo: list[Job], work: Path, deadline: float, workers: int, done: Any) -> None:
            for j in todo:
                status = next((n for n in ("failed", "left out") if f"{n} {j.name}" in names), "ok")
                done(j, [driver.row_of(j, status, f"{status}: why")])

        monkeypatch.setattr(driver, "run", some)
        command = ["gpu.py", "--device", "cpu", "--small", "--out", str(tmp_path), "--work", str(tmp_path / "w")]
        monkeypatch.setattr(sys, "argv", command + ["--only", "kernels,tests"])
        with pytest.raises(SystemExit) as end:
            program.main()
        return int(end.value.code or 0)

    assert main() == 0
    assert "LEFT OUT" not in capsys.readouterr().err
    assert main("left out tests") == 3
    assert "LEFT OUT, 1 jobs" in capsys.readouterr().err.splitlines()[-2]
    (text,) = (p.read_text() for p in tmp_path.glob("*.md"))
    assert "## Left out for lack of time\n\n- tests tests: left out: why" in text
    assert main("left out tests", "failed kernels") == 1
    assert "3 if jobs were left out" in " ".join(program.arguments().format_help().split())


def test_all_published_rows_are_among_the_jobs(tmp_path: Path) -> None:
    names = [j.name for j in jobs(RunOptions("cuda", False, tmp_path, 9.0, 15.0))]
    assert len(names) == len(set(names)) == 1 + 1 + 21 + 9 + 5
    assert {f"steps:{r.model}" for r in seeds.ROWS} <= set(names)
    assert {c.batch for c in step_cases(False) if c.model == "resnet50"} == {64}


def left(model: nn.Module, step: Callable[[], torch.Tensor]) -> list[torch.Tensor]:
    """Loss, random state and gradients after one step from the same random state."""
    with_gradients(model)
    torch.manual_seed(0)
    loss = step()
    return [loss, torch.get_rng_state(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt", {"n_layer": 3, "d": 32, "length": 16, "vocab": 50, "dropout": 0.1}),
        ("resnet18", {"image": 32}),
        pytest.param("densenet121", {"image": 32}, marks=sweep),
        pytest.param("vgg11", {"image": 32}, marks=sweep),
        ("darts_cifar10", {"image": 16, "cells": 3, "channels": 4}),
    ],
)
def test_blocks_checkpointed_by_hand_are_the_same_step(name: str, options: dict) -> None:
    """The gradients are; batch norm's buffers are updated twice, as `torch.utils.checkpoint` does."""
    case = Case(name, name, 2, options)
    model, sample = case.load("cpu")
    step = case.step(with_gradients(model), sample, "cpu")
    with deterministic():
        plain = left(model, step)
        with by_hand(model, step):
            ours = left(model, step)
    assert all(torch.equal(a, b) for a, b in zip(plain, ours, strict=True))
    assert not any("forward" in m.__dict__ for m in model.modules())


def test_a_sample_is_repeated() -> None:
    _, sample = zoo.load("gpt", batch=1, n_layer=1, d=32, length=16, vocab=50)
    assert {k: v.shape for k, v in repeated(sample, 5).items()} == {"input_ids": (5, 16), "targets": (5, 16)}
    x = torch.rand(1, 3, requires_grad=True)
    assert repeated(x, 2).is_leaf
    assert repeated(x, 2).requires_grad


def test_the_tests_for_a_device_are_found_in_their_folders() -> None:
    assert ROOT / "tests" / "torch" / "test_gpu.py" in marked(ROOT)


def test_outcomes_of_tests_become_rows(tmp_path: Path) -> None:
    program = "import pytest\ndef test_a(): pass\ndef test_b(): assert 0, 'why'\n"
    program += "@pytest.mark.skip('not here')\ndef test_c(): pass\n"
    (tmp_path / "test_x.py").write_text(program)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        ".",
        f"--junitxml={tmp_path}/t.xml",
    ]
    subprocess.run([*command, "test_x.py"], cwd=tmp_path, capture_output=True)
    rows = outcomes(tmp_path / "t.xml")
    assert [(r["name"], r["status"]) for r in rows] == [("test_a", "ok"), ("test_b", "failed"), ("test_c", "skipped")]
    assert "why" in rows[1]["note"]
    assert rows[2]["note"] == "not here"


def on_the_cpu(only: str, folder: Path) -> tuple[dict[str, Any], str]:
    """(the document of a run of some jobs with tiny models, its page)."""
    pytest.importorskip("pandas")
    command = [sys.executable, str(ROOT / "benchmarks" / "gpu.py"), "--device", "cpu", "--small", "--only", only]
    command += ["--out", str(folder), "--work", str(folder / "work"), "--minutes", "12", "--solve-seconds", "0.5"]
    done = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr
    (document,) = folder.glob("*-gpu-*.json")
    return json.loads(document.read_text()), document.with_suffix(".md").read_text()


@sweep
def test_compiled_steps_run_to_their_end_on_the_cpu(tmp_path: Path) -> None:
    found, page = on_the_cpu("compiled:gpt2", tmp_path)
    rows = {r["method"]: r for r in found["records"] if r.get("part") == "compiled"}
    assert {"eager", "compile", "compile, checkpoint per block", "ours, least"} <= {*rows}
    for method in (m for m in rows if m.startswith("ours, at")):
        assert abs(rows[method]["peak"] / rows[method]["predicted"] - 1) < 0.01
    assert "ours, least" in page


@sweep
def test_a_step_runs_to_its_end_on_the_cpu(tmp_path: Path) -> None:
    document, page = on_the_cpu("steps:gpt2", tmp_path)
    found = [checked(r) for r in document["rows"]]
    methods = {case.name: {r["method"] for r in found if r["model"] == case.name} for case in step_cases(True)}
    ways = {"plain", "blocks", "half", "third"}
    more = {"gpt2": {"copied"}, "gpt2_small-unused": {"close"}}
    assert methods == {**{name: ways | own for name, own in more.items()}, "resnet18": set()}  # by how the names begin
    rows = {r["method"]: r for r in found if r["model"] == "gpt2"}
    assert all(r["status"] == "ok" and r["seconds"] > 0 for r in rows.values())
    assert rows["half"]["parity"] is True
    assert rows["half"]["peak_mb"] <= 0.52 * rows["plain"]["peak_mb"]
    assert "| gpt2, 2 |" in page

"""Plans each configuration, takes three SGD steps against an eager twin, and binds its plan file here and in another process.

One JSON line for each in out/sweep-configurations.jsonl. Names that have a row are left out, so that a run goes on where one
ended; several runs share the work: --every 4 --first 0, --every 4 --first 1, …

    PYTHONHASHSEED=0 python tests/sweep/run_configurations.py [--every K --first I] [--names a,b] [--seconds 600] [--summary]

One hash seed for both processes: some models loop over a set of strings, and their ops' order depends on it.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import fcntl
import hashlib
import io
import json
import logging
import os
import random
import subprocess
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy
import torch
from configurations import CONFIGURATIONS, build
from torch import Tensor, nn

import rekindle
from rekindle import RekindleError
from rekindle.torch.parts.applied import forwards_of
from rekindle.torch.ways.again import AgainForward

ROWS = Path(os.environ.get("REKINDLE_SWEEP_ROWS", "out/sweep-configurations.jsonl"))
HOW: dict[str, Any] = {"solver": "storages", "time_limit": float(os.environ.get("REKINDLE_SWEEP_SECONDS", "2"))}
STEPS = 3


def code() -> str:
    """A fingerprint of the library: rows of another one do not count."""
    files = sorted(Path(rekindle.__file__).parent.rglob("*.py"))
    return hashlib.sha256(b"".join(f.read_bytes() for f in files)).hexdigest()[:12]


CODE = code()


# --- one step, and what there is to compare of it ----------------------------------------------------------------------


def plans_made(model: nn.Module) -> int:
    """How many plans a planned model, or its planned parts, have made or bound so far."""
    forwards: list[Any] = [f for _, f in forwards_of(model)] or [model.forward]
    return sum(len(list(f.bounds)) for f in forwards if not isinstance(f, AgainForward))


def call(model: nn.Module, sample: Any) -> Any:
    return model(**sample) if isinstance(sample, dict) else model(*sample)


def tensors(x: Any) -> Iterator[Tensor]:
    if isinstance(x, Tensor):
        yield x
    elif isinstance(x, dict | list | tuple):
        for v in x.values() if isinstance(x, dict) else x:
            yield from tensors(v)


def loss_of(out: Any) -> Tensor:
    """The loss that the result carries, else the sum of squares of all that requires grad."""
    if isinstance(out, dict) and isinstance(out.get("loss"), Tensor):
        return out["loss"]
    parts = [t for t in tensors(out) if t.requires_grad]
    if isinstance(out, tuple | list) and parts[0].ndim == 0:
        return parts[0]
    return torch.stack([t.abs().square().sum().double() for t in parts]).sum()


def steps(model: nn.Module, samples: Any, count: int = STEPS) -> list[dict[str, Tensor]]:
    """SGD steps, and after each the loss, gradients, buffers and random state, cloned."""
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    seen = []
    for i in range(count):
        torch.manual_seed(i)
        random.seed(i)
        numpy.random.seed(i)
        optimizer.zero_grad()
        loss = loss_of(call(model, samples(i)))
        loss.backward()
        now = {"loss": loss.detach().clone(), "random state": torch.get_rng_state()}
        now |= {f"gradient of {k}": p.grad.clone() for k, p in model.named_parameters() if p.grad is not None}
        now |= {f"buffer {k}": b.detach().clone() for k, b in model.named_buffers()}
        optimizer.step()
        seen.append(now)
    return seen


def differences(ours: list[dict[str, Tensor]], theirs: list[dict[str, Tensor]]) -> list[str]:
    found = []
    for i, (a, b) in enumerate(zip(ours, theirs, strict=True)):
        found += [f"step {i}: {k} only in one" for k in a.keys() ^ b.keys()]
        found += [f"step {i}: {k}" for k in a.keys() & b.keys() if not same(a[k], b[k])]
    return sorted(found)


def same(a: Tensor, b: Tensor) -> bool:
    if (a.shape, a.dtype) != (b.shape, b.dtype):
        return False
    return torch.equal(a, b) or bool(((a == b) | (a != a) & (b != b)).all())


def digest(step: dict[str, Tensor]) -> str:
    h = hashlib.sha256()
    for k in sorted(step):
        h.update(k.encode())
        h.update(step[k].contiguous().flatten().view(torch.uint8).numpy().tobytes() if step[k].numel() else b"")
    return h.hexdigest()


class Said(logging.Handler):
    """What the library says while it is entered: warnings, log lines of at least WARNING, lines on stderr."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.words: list[str] = []
        self.info: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        (self.words if record.levelno >= logging.WARNING else self.info).append(record.getMessage())

    @contextlib.contextmanager
    def listening(self) -> Iterator[Said]:
        logger, err = logging.getLogger("rekindle"), io.StringIO()
        level = logger.level
        logger.setLevel(logging.INFO)
        logger.addHandler(self)
        try:
            with warnings.catch_warnings(record=True) as seen, contextlib.redirect_stderr(err):
                warnings.simplefilter("always")
                yield self
        finally:
            logger.removeHandler(self)
            logger.setLevel(level)
            self.words += [str(w.message) for w in seen] + [x for x in err.getvalue().splitlines() if x.strip()]


# --- a configuration ---------------------------------------------------------------------------------------------------


def row_of(name: str, folder: Path) -> dict[str, Any]:
    """The configuration's row. status: "equal", "wrong", "refused" (a TraceError), "no step in eager", "error"."""
    begin = time.monotonic()
    row: dict[str, Any] = {
        "name": name,
        "status": "error",
        "silent_replans": 0,
        "binds_here": None,
        "binds_elsewhere": None,
    }
    try:
        model, samples = build(name)
        eager = copy.deepcopy(model)
        theirs = steps(eager, samples)
        again = steps(copy.deepcopy(build(name)[0]), samples)
    except Exception as e:
        return row | {"status": "no step in eager", "why": told(e)}
    if differences(again, theirs):
        return row | {
            "status": "no step in eager",
            "why": f"eager differs from eager: {differences(again, theirs)[:3]}",
        }
    try:
        with Said().listening() as said:
            torch.manual_seed(0)
            for goal in ({"budget": 0.5}, {"minimize": "memory"}):
                try:
                    rekindle.checkpoint(model, samples(0), **goal, **HOW)
                    row["goal"] = goal
                    break
                except rekindle.InfeasibleBudget:
                    continue
        row |= {"said_at_first": said.words[:4], "checkpoint_seconds": round(time.monotonic() - begin, 1)}
        before = plans_made(model)
        with Said().listening() as said:
            ours = steps(model, samples)
        made = plans_made(model) - before
        row |= {
            "replans": made,
            "silent_replans": made if not said.words else 0,
            "said": said.words[:4],
            "info": said.info[:4],
        }
        wrong = differences(ours, theirs)
        row |= {"status": "wrong" if wrong else "equal", "differences": wrong[:6]}
        plan: Any = model.forward.plan  # type: ignore[union-attr]
        plans = [p for part in plan.parts for p in part.plans] if isinstance(plan, rekindle.PartsPlan) else [plan]
        row |= {"ops": sum(len(p.graph.ops) for p in plans), "overhead": round(plan.overhead, 3)}
        row |= {"covered": plan.covered} if isinstance(plan, rekindle.PartsPlan) else {}
        path = folder / f"{name}.json"
        plan.save(path)
        row["binds_here"] = bound(name, path)
        row["digest"] = digest(theirs[0])
    except rekindle.TraceError as e:
        row |= {"status": "refused", "why": told(e)}
    except Exception as e:
        row |= {"status": "wrong" if isinstance(e, rekindle.ParityError) else "error", "why": told(e)}
    return row | {"seconds": round(time.monotonic() - begin, 1)}


def bound(name: str, path: Path) -> str:
    """The digest of the first step by a plan from a file, or why there is none."""
    try:
        model, samples = build(name)
        plan = rekindle.load(path)
        rekindle.apply(model, plan, on_new_shape="error")
        return digest(steps(model, samples, 1)[0])
    except Exception as e:
        return told(e)


def told(e: Exception) -> str:
    at = "" if isinstance(e, RekindleError) else " at " + str(traceback.extract_tb(e.__traceback__)[-1])[:150]
    return f"{type(e).__name__}: {' '.join(str(e).split())[:400]}{at}"


def worker() -> None:
    """Lines of `[name, path]` in, lines of `bound` out."""
    torch.set_num_threads(1)
    out, sys.stdout = sys.stdout, sys.stderr
    for line in sys.stdin:
        name, path = json.loads(line)
        print(json.dumps(bound(name, Path(path))), file=out, flush=True)


def elsewhere(rows: list[dict[str, Any]], folder: Path) -> None:
    """Bind these rows' plan files in another process, in the opposite order: what a process traced before must not matter."""
    todo = [r for r in reversed(rows) if (folder / f"{r['name']}.json").exists()]
    if not todo:
        return
    lines = "".join(json.dumps([r["name"], str(folder / f"{r['name']}.json")]) + "\n" for r in todo)
    command = [sys.executable, __file__, "--worker"]
    done = subprocess.run(command, input=lines, capture_output=True, text=True, check=False)
    answers = done.stdout.splitlines()
    for r, line in zip(todo, answers, strict=False):
        r["binds_elsewhere"] = json.loads(line)
    for r in todo[len(answers) :]:
        r["binds_elsewhere"] = f"the process ended: {done.stderr[-300:]}"


def fault(row: dict[str, Any]) -> str:
    """What is wrong with a row, in a word; "" for none."""
    if row["status"] in ("wrong", "error"):
        return row["status"]
    if row["status"] != "equal":
        return ""
    if row["silent_replans"]:
        return "silent replan"
    places = [p for p in ("here", "elsewhere") if row[f"binds_{p}"] not in (row["digest"], None)]
    return f"plan file {' and '.join(places)}" if places else ""


def write(rows: list[dict[str, Any]]) -> None:
    ROWS.parent.mkdir(parents=True, exist_ok=True)
    with ROWS.open("a", encoding="utf-8") as f:
        fcntl.flock(f, fcntl.LOCK_EX)
        f.write("".join(json.dumps(r | {"code": CODE}) + "\n" for r in rows))


def read() -> dict[str, dict[str, Any]]:
    lines = ROWS.read_text(encoding="utf-8").splitlines() if ROWS.exists() else []
    return {r["name"]: r for r in map(json.loads, lines) if r.get("code") == CODE}


def sweep(names: list[str], seconds: float = float("inf"), together: int = 8) -> None:
    end = time.monotonic() + seconds
    done = read()
    todo = [n for n in names if n not in done]
    with tempfile.TemporaryDirectory() as folder:
        while todo and time.monotonic() < end:
            chunk, todo = todo[:together], todo[together:]
            rows = []
            for name in chunk:
                rows.append(row_of(name, Path(folder)))
                r = rows[-1]
                why = r.get("why") or "; ".join(r.get("differences", ()))
                print(f"{name:34} {r['status']:16} {fault(r):16} {r.get('seconds', 0):6} {why[:150]}", flush=True)
                if time.monotonic() > end:
                    break
            elsewhere(rows, Path(folder))
            write(rows)


def summary() -> str:
    rows = read()
    lines = []
    kinds: dict[str, list[str]] = {}
    for r in rows.values():
        kinds.setdefault(fault(r) or r["status"], []).append(r["name"])
    for kind, names in sorted(kinds.items(), key=lambda x: -len(x[1])):
        lines.append(f"{kind:28} {len(names):4}  {' '.join(names) if kind != 'equal' else ''}")
    for r in rows.values():
        if fault(r) or r["status"] == "refused":
            places = [f"{p}: {r[f'binds_{p}']}" for p in ("here", "elsewhere") if r["status"] == "equal"]
            why = r.get("why") or "; ".join([*r.get("differences", ()), *r.get("info", ()), *places])
            lines.append(f"{r['name']:30} {fault(r) or r['status']:14} {why[:600]}")
    return "\n".join(lines)


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--every", type=int, default=1)
    p.add_argument("--first", type=int, default=0)
    p.add_argument("--names", default="")
    p.add_argument("--seconds", type=float, default=float("inf"))
    p.add_argument("--together", type=int, default=8, help="configurations between two writes and per other process")
    p.add_argument("--summary", action="store_true")
    p.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    given = p.parse_args()
    if given.worker:
        return worker()
    if not given.summary:
        torch.set_num_threads(1)
        names = given.names.split(",") if given.names else list(CONFIGURATIONS)[given.first :: given.every]
        sweep(names, given.seconds, given.together)
    print(summary())
    return None


if __name__ == "__main__":
    main()

"""Schedules that a search found, remembered on disk: the next start of the same script reads its plan and makes no search.

One JSON file per request, in the folder `plans` of the cache folder ($REKINDLE_CACHE or ~/.cache/rekindle):

    {"format": "rekindle.remembered/1", "request": {…}, "schedules": [{"format": "rekindle.schedule/1", …, "steps": […]}]}

The request is everything that a search depends on: the graph, the costs of its ops, the goal, the options, the versions. Only
the order of runs and frees is taken from a file: the judge computes peak and cost anew, and the planner the certificate, for
which it first looks for a short proof of the bound that the file names. A
file that is damaged, too large, for another request or with other figures than the judge's counts as absent and is replaced.
If the folder cannot be used, nothing is remembered; the logger "rekindle" says so at level DEBUG.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import math
import os
import re
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from .. import bounds
from ..ask import PlanOptions
from ..errors import FormatError, RekindleError
from ..model import formats
from ..model.cache_folder import cache_folder, make_private
from ..model.files import locked, read_own, write_own
from ..model.graph import DESCRIBING, Graph
from ..printed import name
from ..problem import Solver
from ..version import __version__
from .candidates import Known, Scored, Scorer
from .plan_files import is_solver_name, runs_too_much

log = logging.getLogger("rekindle")
T = TypeVar("T")

FORMAT = "rekindle.remembered/1"
SEARCH_VERSION = 9  # raise it whenever a search finds other schedules: plans that are older are then searched for again
FOLDER = "plans"
NEWS = "plan of the same graph, goal and costs found on disk"
LOCK_WAIT_S = 5.0  # for another process that tidies the folder; after it, the next process does so. A guess
UNFINISHED_MOST_S = 3600.0  # age from which an unfinished file was left behind by a process that died; a guess
_OURS = re.compile(r"[0-9a-f]{32}\.json")
_UNFINISHED = re.compile(r"\.rekindle-[0-9a-f]{16}")  # as `model.files.write_own` names a file before it is whole


@dataclass(frozen=True)
class MemorySettings:
    """How much is remembered. All are guesses; the schedule of a graph of 1,000 ops takes about 50 KiB.

    files_most : files that stay in the folder; 0: nothing is remembered, and nothing is read.
    all_most_bytes : bytes of all files together.
    file_most_bytes : a larger file is neither written nor read.
    """

    files_most: int = 1000
    all_most_bytes: int = 256 * 2**20
    file_most_bytes: int = 32 * 2**20


SETTINGS = MemorySettings()


@dataclass(frozen=True)
class Place:
    """The file of one request's schedules. Reading and writing never raise.

    scorer : judges the schedules that the file holds.
    request : what was asked, as JSON.
    """

    path: Path
    scorer: Scorer
    request: dict[str, Any]

    def recall(self) -> list[Known]:
        """The remembered schedules, as valid and with the figures that they had; [] where there are none. The file counts as
        just used."""
        found = read(self.path, FORMAT, self._schedules, SETTINGS.file_most_bytes)
        if found is not None:
            with contextlib.suppress(OSError):
                os.utime(self.path)
        return found or []

    def _schedules(self, r: formats.Reader) -> list[Known]:
        if r.table("request") != self.request:
            raise FormatError(f"{r.where} belongs to another request")
        found = [self._judged(doc, f"{r.where}: schedule {i}") for i, doc in enumerate(r.items("schedules"))]
        if not found:
            raise FormatError(f"{r.where} holds no schedule")
        return found

    def _judged(self, doc: Any, where: str) -> Known:
        graph, schedule = self.scorer.graph, formats.schedule_from_json(doc, where)
        if schedule.graph_hash != graph.hash:
            raise FormatError(f"{where} is for another graph")
        if runs_too_much(graph, schedule) or not is_solver_name(schedule.solver):
            raise FormatError(f"{where} runs more than any step does, or names no solver")
        scored = self.scorer.as_run(schedule)
        r, j = formats.Reader(doc, where), scored.judged
        bound, overhead = r.whole("bound_bytes"), r.number("overhead")
        if not 0 <= bound <= j.peak_bytes:
            raise FormatError(f"{where} has a bound that is none of its peak")
        if r.whole("peak_bytes") != j.peak_bytes or not math.isclose(overhead, j.overhead, rel_tol=1e-9, abs_tol=1e-12):
            raise FormatError(f"{where} has other figures than its file says")
        most = self.request.get("host_budget", 0)  # nothing where copies were not asked for
        if most is not None and j.host_bytes > most:
            raise FormatError(f"{where} copies more to the host than was asked")
        return Known(schedule, bound)

    def keep(self, found: Iterable[tuple[Scored, bounds.Bound]]) -> None:
        """Remember these schedules, each with its bound, in place of earlier ones, and forget the least recently used files
        beyond the limits."""
        schedules = [_document(s, bound) for s, bound in found]
        # Steps take most of the file, at up to 30 bytes each: a file that would not be read is not written.
        if 30 * sum(len(d["steps"]) for d in schedules) > SETTINGS.file_most_bytes:
            log.debug("plan not remembered: the schedules are too long")
        elif write(self.path, {"format": FORMAT, "request": self.request, "schedules": schedules}):
            with contextlib.suppress(OSError), locked(self.path.parent, LOCK_WAIT_S):
                _tidy(self.path.parent)


def digest(told: Any) -> str:
    """The name of the file that holds what depends on these values alone."""
    return hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()[:32] + ".json"


def read(path: Path | None, format: str, made: Callable[[formats.Reader], T], most_bytes: int = 2**20) -> T | None:
    """The object that is made of the document in a file of the cache folder; None: there is no file, or it is damaged, too
    large or of another format."""
    if path is None:
        return None
    where = name(str(path))
    try:
        return made(formats.Reader(formats.parse_json(read_own(path, most_bytes), where), where, format))
    except FileNotFoundError:
        return None
    except (OSError, FormatError) as e:
        log.debug("a remembered file passed over, to be replaced: %s: %s", where, e)
        return None


def write(path: Path | None, doc: dict[str, Any]) -> bool:
    """Write a document to a file of the cache folder, if there is one. Gives whether it could be; the log says why not."""
    if path is None:
        return False
    try:
        make_private(path.parent.parent)
        make_private(path.parent)
        write_own(path, formats.as_text(doc))
    except (OSError, ValueError, RekindleError) as e:
        log.debug("%s is not remembered: %s", doc["format"], e)
        return False
    return True


def place(kind: str, scorer: Scorer, options: PlanOptions, solver: Solver) -> Place | None:
    """Where the answer to this request is remembered; None: it is not remembered.

    kind : "plan" or "frontier"; of a frontier the goal is not looked at.

    Solvers of other packages are asked each time: their code may have changed since.
    """
    module = getattr(solver.solve, "__module__", "") or ""
    if not options.cache or SETTINGS.files_most < 1 or module.partition(".")[0] != __name__.partition(".")[0]:
        return None
    graph = scorer.graph
    request = {
        "kind": kind, "graph_hash": graph.hash, "resident_bytes": graph.resident_bytes, "costs": costs_hash(graph),
        "goal": options.goal.to_json() if kind == "plan" else {}, "solver": options.solver, "cost": options.cost,
        "effort": options.effort, "time_limit": options.time_limit, "seed": options.seed, "parity": options.parity,
        "spare_bytes": scorer.spare,
        "finished": scorer.finish is not None, "rekindle": __version__, "search": SEARCH_VERSION,
    }  # fmt: skip
    if options.offload:
        request |= {
            "host_budget": options.host_budget,
            "link": list(graph.link.rates) if graph.link is not None else None,
        }
    if scorer.plain_bytes is not None:
        request["plain_bytes"] = scorer.plain_bytes
    folder = cache_folder(FOLDER)
    return None if folder is None else Place(folder / digest(request), scorer, request)


def costs_hash(graph: Graph) -> str:
    """SHA-256 of all that searches know of ops beside the graph's structure: seconds, FLOPs, workspace, and their kinds."""
    doc = [[o.seconds, o.flops, o.workspace, *(getattr(o, key) for key in DESCRIBING)] for o in graph.ops]
    return hashlib.sha256(json.dumps(doc, separators=(",", ":")).encode()).hexdigest()


def _document(s: Scored, bound: bounds.Bound) -> dict[str, Any]:
    return {
        "format": formats.schedule_format(s.schedule), "graph_hash": s.schedule.graph_hash, "solver": s.schedule.solver,
        "peak_bytes": s.judged.peak_bytes, "overhead": s.judged.overhead, "bound_bytes": bound.bytes,
        "steps": formats.steps_to_json(s.schedule),
    }  # fmt: skip


def _tidy(folder: Path) -> None:
    """Delete the least recently used files beyond the limits, and files that a dead process left unfinished."""
    ours: list[tuple[float, int, str]] = []
    with os.scandir(folder) as entries:
        for entry in entries:
            with contextlib.suppress(OSError):  # another process may have deleted it
                there = entry.stat(follow_symlinks=False)
                if _OURS.fullmatch(entry.name):
                    ours.append((there.st_mtime, there.st_size, entry.path))
                elif _UNFINISHED.fullmatch(entry.name) and time.time() - there.st_mtime > UNFINISHED_MOST_S:
                    os.unlink(entry.path)
    total = 0
    for i, (_, size, path) in enumerate(sorted(ours, reverse=True)):
        total += size
        if i >= SETTINGS.files_most or total > SETTINGS.all_most_bytes:
            with contextlib.suppress(OSError):
                os.unlink(path)

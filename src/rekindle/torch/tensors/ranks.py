"""One process of a distributed run answers a question, and the others take its answer.

The first process that asks makes the answer and puts it into the key-value store of the default process group; the others
wait for it there. No collective is needed, so a process that asks alone does not hang. A question is answered once per run:
the answer stays in the store. A refusal (any `RekindleError`) is an answer too; after another failure, those who wait are told
and the next process that asks makes the answer.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import time
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ... import errors
from ...errors import InfeasibleBudget, RekindleError
from ...model.formats import parse_json
from ...saying import notices
from ...version import __version__
from ..private import store_of_processes

log = logging.getLogger("rekindle")
T = TypeVar("T")
_REFUSALS = (errors.UsageError, errors.TraceError, errors.FormatError, errors.PlanMismatch, errors.ParityError)
WAIT_MOST_S = 1800.0  # a guess; after it a process gives up to wait for another one's answer: that one may have died
POLL_S = 0.05  # between two looks; a guess
NEWS_S = 5.0  # between two lines of progress; a guess
NUMBERS = ("budget", "smallest_peak", "bound_bytes")  # of an InfeasibleBudget


@dataclass(frozen=True)
class Received:
    """An answer that another process made, as JSON."""

    answer: Any


@dataclass
class Turns:
    """Steps that all processes must take together, such as those of a sharded model, while one of them makes the answer.

    join : takes a step beside the process that makes the answer.
    """

    join: Callable[[], object]
    _store: Any = None
    _key: str = ""
    _joined: int = 0

    def at(self, store: Any, key: str) -> None:
        """Count the turns in this store."""
        self._store, self._key = store, f"{key}/turns"

    def take(self) -> None:
        """Tell the other processes that this one takes a step now."""
        if self._store is not None:
            self._store.add(self._key, 1)

    def join_those_taken(self) -> None:
        """Take the steps that the other process has begun since the last look."""
        while self._store.add(self._key, 0) > self._joined:
            self._joined += 1
            self.join()


def once(
    what: str,
    question: dict[str, Any],
    make: Callable[[], T],
    written: Callable[[T], Any],
    progress: Callable[[str], None] | None = None,
    turns: Turns | None = None,
) -> T | Received:
    """The answer if it was made here, or what another process wrote down of it.

    what : the answer in words, such as "the plan".
    question : JSON; processes that give equal ones get one answer.
    written : function from the answer to JSON.
    progress : called with one line of text now and then while another process is waited for.
    turns : steps that `make` takes and that the processes which wait must take too.

    Raises
    ------
    RekindleError : the refusal of the process that answered; it failed; or it did not answer within `WAIT_MOST_S`.
    """
    store = store_of_processes()
    if store is None:
        return make()
    asked = json.dumps([what, question, __version__], sort_keys=True)
    key = f"rekindle/{hashlib.sha256(asked.encode()).hexdigest()}"
    try:
        key = f"{key}/{store.add(f'{key}/failures', 0)}"
        first = store.add(f"{key}/asked", 1) == 1
    except Exception as e:  # a store of another library's may lack `add`
        notices.warn(
            f"the store of the process group cannot be used ({e}): each process measures and plans alone, and plans may differ"
        )
        return make()
    if turns is not None:
        turns.at(store, key)
    if first:
        return _made(store, key, what, make, written)
    return _received(store, key, what, progress, turns)


def _made(store: Any, key: str, what: str, make: Callable[[], T], written: Callable[[T], Any]) -> T:
    """Make the answer and give it to the others."""
    rank = torch.distributed.get_rank()
    try:
        store.set(f"{key}/by", str(rank))
        found = make()
        answer = {"answer": written(found)}
    except BaseException as e:
        with contextlib.suppress(Exception):
            _give(store, key, {"refusal": _error_json(e)})
            if not isinstance(e, RekindleError):
                store.add(f"{key.rpartition('/')[0]}/failures", 1)
        raise
    try:
        _give(store, key, answer)
    except Exception as e:
        notices.warn(f"{what} could not be given to the other processes, which wait for it: {e}")
    return found


def _give(store: Any, key: str, doc: dict[str, Any]) -> None:
    store.set(f"{key}/answer", zlib.compress(json.dumps(doc, allow_nan=False).encode(), 1))


def _received(store: Any, key: str, what: str, progress: Callable[[str], None] | None, turns: Turns | None) -> Received:
    """The answer of the process that was first to ask."""
    start = told = time.monotonic()
    while not store.check([f"{key}/answer"]):
        if turns is not None:
            turns.join_those_taken()
        now = time.monotonic()
        if now - start > WAIT_MOST_S:
            raise RekindleError(
                f"{what} was asked for, which {_maker(store, key)} was first to make, but it gave no answer within "
                f"{WAIT_MOST_S:g} s; look at what that process does, or start the run again"
            )
        if progress is not None and now - told > NEWS_S:
            told = now
            progress(f"waiting for {_maker(store, key)}, which makes {what} ({now - start:.0f} s)")
        time.sleep(POLL_S)
    log.info("%s comes from %s", what, _maker(store, key))
    doc = parse_json(zlib.decompress(store.get(f"{key}/answer")).decode(), f"{what} of {_maker(store, key)}")
    if "refusal" in doc:
        raise _error(doc["refusal"], f"{_maker(store, key)}, which made {what} for all processes, failed")
    return Received(doc["answer"])


def _maker(store: Any, key: str) -> str:
    by = f"{key}/by"
    return f"the process of rank {int(store.get(by))}" if store.check([by]) else "another process"


def _error_json(e: BaseException) -> dict[str, Any]:
    doc: dict[str, Any] = {"type": type(e).__name__, "message": str(e), "refused": isinstance(e, RekindleError)}
    if isinstance(e, InfeasibleBudget):
        doc |= {name: getattr(e, name) for name in (*NUMBERS, "op")}
    return doc


def _error(doc: dict[str, Any], failed: str) -> RekindleError:
    """The error of another process, to be raised here."""
    if not doc["refused"]:
        return RekindleError(f"{failed} with {doc['type']}: {doc['message']}; once that is mended, ask again")
    if doc["type"] == "InfeasibleBudget":
        return InfeasibleBudget(doc["message"], **{name: doc[name] for name in (*NUMBERS, "op")})
    kinds = {k.__name__: k for k in _REFUSALS}
    return kinds.get(doc["type"], RekindleError)(doc["message"])

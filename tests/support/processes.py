"""Scenes that run in two real processes of a gloo group; each process writes down what it saw, as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

Scene = Callable[[int], Any]  # rank -> what it saw


def seen_by_both(scenes: Sequence[Scene], folder: Path) -> list[dict[str, Any]]:
    """What each of two processes saw: name of a scene -> its result, or the error that ended it, as `error_of` gives it.

    scenes : functions of a module, which both processes import.
    """
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    torch.multiprocessing.spawn(_work, (store.port, str(folder), list(scenes)), nprocs=2)
    return [json.loads((folder / f"{rank}.json").read_text()) for rank in (0, 1)]


def _work(rank: int, port: int, folder: str, scenes: Sequence[Scene]) -> None:
    os.environ["REKINDLE_CACHE"] = str(Path(folder) / f"cache{rank}")
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, is_master=False)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    seen = {}
    for scene in scenes:
        dist.barrier()
        torch.manual_seed(0)
        try:
            seen[scene.__name__] = scene(rank)
        except Exception as e:
            seen[scene.__name__] = {"type": type(e).__name__, "message": str(e)}
    Path(folder, f"{rank}.json").write_text(json.dumps(seen))
    dist.barrier()
    dist.destroy_process_group()


def error_of(call: Callable[[], Any]) -> dict[str, Any]:
    """The error of the call: its type, its message and its fields."""
    try:
        call()
    except BaseException as e:
        return {"type": type(e).__name__, "message": str(e), **vars(e)}
    raise AssertionError("no error")

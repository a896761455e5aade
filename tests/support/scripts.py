"""Runs a script in processes of its own, as a user does."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

MOST_SECONDS = 300  # so that processes that wait for each other for ever end the test
TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def printed_by(script: Path, *arguments: object, processes: int = 1) -> str:
    """All that the script prints, on stdout and stderr. processes : above 1, torchrun starts so many. The test fails if one of
    them does."""
    paths = [str(Path(__file__).parent), *filter(None, sys.path)]
    by = [*TORCHRUN, str(processes)] if processes > 1 else []
    done = subprocess.run(
        [sys.executable, *by, str(script), *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=MOST_SECONDS, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    return done.stdout

"""`rekindle bench` with the comparators and suites that are not installed: checkpointing by hand, torch.compile, chunked heads;
the suites modern, deep and cpu.

python benchmarks/bench.py --suite smoke --models cnn --methods plain,checkpoint-blocks
"""

from __future__ import annotations

import sys

import comparators  # noqa: F401 (it registers them)
import zoo_suites  # noqa: F401 (it registers them)

from rekindle.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "bench")
    sys.exit(main())

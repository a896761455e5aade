"""`rekindle bench` with the comparators, which are not installed: checkpointing by hand, torch.compile, chunked heads.

python benchmarks/bench.py --suite smoke --models cnn --methods plain,checkpoint-blocks
"""

from __future__ import annotations

import sys

import comparators  # noqa: F401 (it registers them)

from rekindle.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "bench")
    sys.exit(main())

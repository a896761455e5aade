"""docs/benchmarks.md, the pages below it and their pictures, from rows of `rekindle bench`.

python benchmarks/report.py --rows benchmarks/results/*-bench-*.jsonl [--out docs/benchmarks.md]
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from page.document import write
from page.rows import read

from rekindle.errors import RekindleError

PAGE = Path(__file__).parent.parent / "docs" / "benchmarks.md"


def main() -> int:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--rows", type=Path, nargs="+", required=True, help="JSONL files, or JSON with a list under rows")
    p.add_argument("--out", type=Path, default=PAGE)
    given = p.parse_args()
    try:
        files = write(read(given.rows, lambda line: print(line, file=sys.stderr)), given.out)
    except RekindleError as e:
        print(f"error: {e}", file=sys.stderr)
        return 1
    pictures = sum(f.suffix == ".svg" for f in files)
    print(f"wrote {files[0]}, {len(files) - 1 - pictures} pages below it, and {pictures} pictures")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Runs the notebooks and writes their outputs into them: `python tools/run_notebooks.py [NAME ...]`.

The documentation shows these outputs. Run it after a change that alters them;
`tests/torch/test_notebooks.py` runs the cells as well.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"


def run(path: Path) -> nbformat.NotebookNode:
    """The notebook with the outputs of a run in an empty folder, without the times of its cells."""
    book = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["REKINDLE_CACHE"] = folder  # a plan that is remembered shows other seconds than one that is made
        NotebookClient(
            book, timeout=300, kernel_name="python3", coalesce_streams=True, resources={"metadata": {"path": folder}}
        ).execute()  # fmt: skip
    for cell in book.cells:
        cell.metadata.pop("execution", None)
    return book


def main(names: list[str]) -> None:
    for path in sorted(FOLDER.glob("*.ipynb")):
        if not names or path.stem in names:
            nbformat.write(run(path), path)
            print(f"ran {path.name}")


if __name__ == "__main__":
    main(sys.argv[1:])

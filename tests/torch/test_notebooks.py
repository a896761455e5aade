"""The notebooks run from top to bottom, their own assertions hold, and the outputs in the files come from such a run."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from marks import few

nbformat = pytest.importorskip("nbformat")
nbclient = pytest.importorskip("nbclient")
pytest.importorskip("ipykernel")

FOLDER = Path(__file__).parents[2] / "notebooks"
NAMES = sorted(p.stem for p in FOLDER.glob("*.ipynb"))
MOST_KB = 100


def outputs(book: object) -> list[list[str]]:
    """The kinds of outputs of each cell of code: streams by name, others by type."""
    kinds = []
    for cell in book.cells:  # type: ignore[attr-defined]
        if cell.cell_type == "code":
            kinds.append([o.get("name") or o.output_type for o in cell.outputs if o.get("name") != "stderr"])
    return kinds


@pytest.mark.parametrize("name", few(NAMES, ["graph_by_hand", "raw_loop"]))
def test_a_notebook_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(FOLDER.parent / "src"), os.environ.get("PYTHONPATH", "")]))
    monkeypatch.setenv("MPLBACKEND", "module://matplotlib_inline.backend_inline")
    book = nbformat.read(FOLDER / f"{name}.ipynb", as_version=4)
    shown = outputs(book)
    folder = {"metadata": {"path": str(tmp_path)}}
    nbclient.NotebookClient(book, timeout=300, kernel_name="python3", coalesce_streams=True, resources=folder).execute()
    assert outputs(book) == shown, "run tools/run_notebooks.py"
    assert any(shown)


@pytest.mark.parametrize("name", NAMES)
def test_a_notebook_is_small_and_was_run(name: str) -> None:
    path = FOLDER / f"{name}.ipynb"
    assert path.stat().st_size < 1024 * MOST_KB
    cells = [c for c in json.loads(path.read_text(encoding="utf-8"))["cells"] if c["cell_type"] == "code"]
    assert [c["execution_count"] for c in cells] == list(range(1, len(cells) + 1))
    assert "/tmp" not in path.read_text(encoding="utf-8")

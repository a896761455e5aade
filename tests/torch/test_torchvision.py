"""`make setup` completes a torchvision whose compiled ops do not load: nms gives right numbers, and scripts can import it."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from torch import Tensor

from libraries import needs_torchvision

TOOLS = Path(__file__).parents[2] / "tools"


def tool(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, TOOLS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def naive(boxes: Tensor, scores: Tensor, threshold: float) -> list[int]:
    """The definition of non-maximum suppression, box by box."""
    kept: list[int] = []
    for i in sorted(range(len(boxes)), key=lambda i: -scores[i].item()):
        if all(iou(boxes[i], boxes[j]) <= threshold for j in kept):
            kept.append(i)
    return kept


def iou(a: Tensor, b: Tensor) -> float:
    width = torch.clamp(torch.minimum(a[2], b[2]) - torch.maximum(a[0], b[0]), min=0)
    height = torch.clamp(torch.minimum(a[3], b[3]) - torch.maximum(a[1], b[1]), min=0)
    overlap = width * height
    return float(overlap / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - overlap))


def boxes_and_scores(n: int, dtype: torch.dtype, seed: int) -> tuple[Tensor, Tensor]:
    """Boxes that overlap often, some of them twice, and scores some of which are equal."""
    random = torch.Generator().manual_seed(seed)
    corner = 10 * torch.rand(n, 2, generator=random, dtype=torch.float64)
    boxes = torch.cat([corner, corner + 0.5 + 5 * torch.rand(n, 2, generator=random, dtype=torch.float64)], 1)
    boxes[n // 2 : n // 2 + n // 4] = boxes[: n // 4]
    scores = torch.randint(0, max(1, n // 2), (n,), generator=random) / max(1, n)
    return boxes.to(dtype), scores.to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("n", [0, 1, 2, 17, 60])
@pytest.mark.parametrize("threshold", [0.0, 0.3, 0.7, 1.0])
def test_plain_nms_is_the_naive_loops(n: int, threshold: float, dtype: torch.dtype) -> None:
    boxes, scores = boxes_and_scores(n, dtype, seed=n)
    kept = tool("torchvision_plain_ops").keep_best(boxes, scores, threshold)
    assert kept.dtype == torch.int64
    assert kept.tolist() == naive(boxes, scores, threshold)


def test_plain_nms_refuses_other_shapes() -> None:
    keep_best = tool("torchvision_plain_ops").keep_best
    with pytest.raises(RuntimeError, match="boxes must be"):
        keep_best(torch.rand(3, 5), torch.rand(3), 0.5)
    with pytest.raises(RuntimeError, match=r"scores must be \[3\]"):
        keep_best(torch.rand(3, 4), torch.rand(4), 0.5)


def test_torchvisions_nms_is_the_naive_loops() -> None:
    needs_torchvision()
    from torchvision.ops import batched_nms, nms

    boxes, scores = boxes_and_scores(40, torch.float32, seed=3)
    assert nms(boxes, scores, 0.4).tolist() == naive(boxes, scores, 0.4)
    half = torch.arange(40) % 2
    each = [[2 * i + which for i in naive(boxes[which::2], scores[which::2], 0.4)] for which in (0, 1)]
    assert sorted(batched_nms(boxes, scores, half, 0.4).tolist()) == sorted(each[0] + each[1])


def test_a_script_that_knows_nothing_of_rekindle_can_import_them() -> None:
    needs_torchvision()
    for package in ("timm", "transformers"):
        if importlib.util.find_spec(package) is None:
            pytest.skip(f"{package} is not installed")
    script = "import torchvision, timm\nfrom transformers import AutoImageProcessor, GPT2LMHeadModel"
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr


def installation(folder: Path) -> importlib.metadata.Distribution:
    """The files of a torchvision that the tool changes, and its list of files."""
    for name, text in {
        "torchvision/extension.py": "def _has_ops():\n    return False\n",
        "torchvision/ops/boxes.py": "def nms(): ...\n",
        "torchvision-0.1.2.dist-info/METADATA": "Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1.2\n",
        "torchvision-0.1.2.dist-info/RECORD": "torchvision/extension.py,sha256=a,3\ntorchvision/ops/boxes.py,sha256=b,3\n"
        "torchvision/utils.py,sha256=c,3\ntorchvision-0.1.2.dist-info/RECORD,,\n",
    }.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return importlib.metadata.Distribution.at(folder / "torchvision-0.1.2.dist-info")


def test_an_installation_is_completed_once(tmp_path: Path) -> None:
    complete = tool("complete_torchvision").complete
    complete(installation(tmp_path))
    after = {p: p.read_text() for p in tmp_path.rglob("*") if p.is_file()}
    assert (tmp_path / "torchvision/_plain_ops.py").read_text() == (TOOLS / "torchvision_plain_ops.py").read_text()
    assert "_define()" in after[tmp_path / "torchvision/extension.py"]
    record = after[tmp_path / "torchvision-0.1.2.dist-info/RECORD"].splitlines()
    assert "torchvision/_plain_ops.py,," in record
    assert "torchvision/extension.py,," in record
    assert "torchvision/utils.py,sha256=c,3" in record
    complete(importlib.metadata.Distribution.at(tmp_path / "torchvision-0.1.2.dist-info"))
    assert {p: p.read_text() for p in tmp_path.rglob("*") if p.is_file()} == after


@pytest.mark.parametrize(
    ("failure", "code", "completed"),
    [
        (None, 0, False),
        ("operator torchvision::nms does not exist", 1, True),
        ("No module named 'torchvision'", 1, False),
    ],
)
def test_only_missing_compiled_ops_are_completed(
    failure: str | None, code: int, completed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module, done = tool("complete_torchvision"), []
    monkeypatch.setattr(module, "failure", lambda: failure)
    monkeypatch.setattr(module, "complete", done.append)
    monkeypatch.setattr(importlib.metadata, "distribution", lambda name: name)
    assert module.main() == code
    assert bool(done) == completed

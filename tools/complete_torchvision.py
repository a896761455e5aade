"""Completes the installed torchvision where its compiled ops do not load. `make setup` runs it in the venv it builds.

PyPI's torchvision for Linux is compiled for CUDA. Beside a CPU-only torch its compiled ops do not load; then
`import torchvision` fails with "operator torchvision::nms does not exist", and with it timm and most models of transformers.
Where that is so, this script changes three files of that installation, and nothing else:

- `torchvision/_plain_ops.py` is added: a copy of `torchvision_plain_ops.py`, with nms in plain PyTorch;
- `torchvision/extension.py` and `torchvision/ops/boxes.py` get two lines at their end that use it.

The other compiled ops (deform_conv2d, roi_pool, ...) go on raising torchvision's own error. `pip uninstall torchvision` removes
all of it, and installing torchvision again undoes it. A torchvision that can be imported is left alone.
"""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
from pathlib import Path

SYMPTOM = "operator torchvision::nms does not exist"
CHECK = """
import torch, torchvision
boxes = torch.tensor([[0.0, 0.0, 2.0, 2.0], [0.0, 0.0, 2.0, 1.9], [5.0, 5.0, 6.0, 6.0]])
assert torchvision.ops.nms(boxes, torch.tensor([0.5, 0.9, 0.1]), 0.5).tolist() == [1, 2]
"""
MARK = (
    "\n# Added by Rekindle's tools/complete_torchvision.py, because the compiled ops do not load beside this torch.\n"
)
ENDINGS = {
    "torchvision/extension.py": "if not _has_ops():\n    from ._plain_ops import define as _define\n\n    _define()\n",
    "torchvision/ops/boxes.py": "if not torchvision.extension._has_ops():\n    from .._plain_ops import nms  # noqa\n",
}
ADDED = "torchvision/_plain_ops.py"


def main() -> int:
    """The exit code: 0 where torchvision can be imported, now or before, else 1."""
    problem = failure()
    if problem is None:
        return 0
    if SYMPTOM not in problem:
        print(f"torchvision cannot be imported, and not for its compiled ops:\n{problem}", file=sys.stderr)
        return 1
    complete(importlib.metadata.distribution("torchvision"))
    problem = failure()
    if problem is not None:
        print(f"torchvision still cannot be imported, with nms in plain PyTorch:\n{problem}", file=sys.stderr)
        return 1
    print(
        "torchvision's compiled ops do not load beside this torch: nms is now plain PyTorch, the others raise an error"
    )
    return 0


def failure() -> str | None:
    """Why torchvision does not work in a fresh process of this Python; None where it does."""
    ran = subprocess.run([sys.executable, "-c", CHECK], capture_output=True, text=True)
    return None if ran.returncode == 0 else ran.stderr


def complete(installed: importlib.metadata.Distribution) -> None:
    """Add the plain ops to this installation of torchvision. A second time changes nothing."""
    plain = Path(__file__).with_name("torchvision_plain_ops.py").read_text(encoding="utf-8")
    replace(Path(str(installed.locate_file(ADDED))), plain)
    for name, ending in ENDINGS.items():
        path = Path(str(installed.locate_file(name)))
        text = path.read_text(encoding="utf-8")
        if MARK not in text:
            replace(path, text + MARK + ending)
    record = next(Path(str(f.locate())) for f in installed.files or () if f.name == "RECORD")
    lines = [
        line for line in record.read_text(encoding="utf-8").splitlines() if line.split(",")[0] not in (ADDED, *ENDINGS)
    ]
    replace(
        record, "\n".join([*lines, *(f"{name},," for name in (ADDED, *ENDINGS))]) + "\n"
    )  # so that pip removes them


def replace(path: Path, text: str) -> None:
    """Write a new file in the place of an old one, which may be a hard link into the cache of an installer."""
    new = path.with_name(path.name + ".new")
    new.write_text(text, encoding="utf-8")
    os.replace(new, path)


if __name__ == "__main__":
    sys.exit(main())

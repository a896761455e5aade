"""Runs Python where a CUDA build of PyTorch finds a device, on a machine without one.

    python tools/cuda_without_a_device.py -m pytest tests/matrix

`no_device/device.c` stands in front of CUDA's runtime. Autograd's engine, the allocator, generators, streams and events are
then PyTorch's own, and kernels are not run: numbers mean nothing, and only fake tensors go through cuBLAS and cuDNN. With a GPU
at hand, the program runs on that.

Exits with 77 and the reason where it cannot be done, as build tools say "skipped"; else as the program does.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

SKIPPED = 77
SOURCE = Path(__file__).with_name("no_device")


def main(arguments: list[str]) -> int:
    """Run Python with these arguments; its exit code."""
    import torch

    if torch.version.cuda is None:
        return skipped(f"torch {torch.__version__} has no CUDA build")
    if torch.cuda.is_available():
        return subprocess.run([sys.executable, *arguments]).returncode
    if torch.version.cuda.split(".")[0] != "13":
        return skipped(f"the functions of CUDA 13 are known here, and torch is built for CUDA {torch.version.cuda}")
    compiler = shutil.which("cc")
    if compiler is None:
        return skipped("there is no C compiler (cc)")
    headers = next((p for p in include_folders() if (p / "driver_types.h").exists()), None)
    if headers is None:
        return skipped("the package nvidia-cuda-runtime, which has CUDA's headers, is not installed")
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libcuda.so.1"  # PyTorch loads the driver by this name
        command = [compiler, "-shared", "-fPIC", "-O1", "-w", f"-I{SOURCE}", f"-I{headers}", "-Wl,-soname,libcuda.so.1"]
        subprocess.run([*command, "-o", str(library), str(SOURCE / "device.c")], check=True)
        return subprocess.run([sys.executable, *arguments], env=os.environ | {"LD_PRELOAD": str(library)}).returncode


def include_folders() -> list[Path]:
    """Folders of header files of NVIDIA's packages."""
    return [p for at in sys.path for p in Path(at).glob("nvidia/*/include")]


def skipped(reason: str) -> int:
    print(f"skipped: {reason}", file=sys.stderr)
    return SKIPPED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

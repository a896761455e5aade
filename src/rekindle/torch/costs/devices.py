"""Rates of devices by name, and the roofline: an estimate of seconds for operators that cannot be timed.

The names are also known where torch is not: the help of the command line lists them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from ...errors import UsageError
from ...printed import value

if TYPE_CHECKING:
    import torch

_T, _GB, _GIB = 1e12, 1e9, 2**30


@dataclass(frozen=True)
class Device:
    """The best rates of a device.

    float32_flop_per_s, float64_flop_per_s : plain arithmetic and, for float64, matrix products.
    tf32_flop_per_s : float32 matrix products where TF32 is allowed; equal to float32 on a device without TF32.
    half_flop_per_s : bfloat16 and float16 matrix products, accumulated in float32, without sparsity.
    memory_bytes_per_s : bandwidth of its memory.
    launch_s : seconds that any operator takes at least.
    memory_bytes : size of its memory.
    link_bytes_per_s : between its memory and pinned memory of the host, each way, both ways at once.
    capability : of a GPU, its compute capability, by which PyTorch chooses kernels; None: it is no GPU.
    """

    name: str
    float32_flop_per_s: float
    tf32_flop_per_s: float
    half_flop_per_s: float
    float64_flop_per_s: float
    memory_bytes_per_s: float
    launch_s: float
    memory_bytes: int
    link_bytes_per_s: float
    capability: tuple[int, int] | None = None


# Vendors print tensor-core figures with 2:4 sparsity where there is any; here they are halved. Memory is what the
# driver leaves to programs (torch's "total capacity"), a little below the name plate. Launch times come from no vendor;
# they are rough figures: a kernel of an eager program takes the host about 4 µs, a CPU operator about 2 µs. Links are what is
# left in practice of PCIe 5.0, 4.0 and 3.0 with 16 lanes (64, 32 and 16 GB/s each way); the CPU's is half of its memory's.
_TABLE = (
    # NVIDIA H200 data sheet, SXM: the compute of the H100, 141 GB of HBM3e at 4.8 TB/s
    Device("h200", 67 * _T, 494.5 * _T, 989.5 * _T, 67 * _T, 4800 * _GB, 4e-6, int(139.7 * _GIB), 50 * _GB, (9, 0)),
    # NVIDIA H100 data sheet, SXM: FP32 67, TF32 989 sparse, BF16 1,979 sparse, FP64 tensor core 67 TFLOPS; 80 GB at
    # 3.35 TB/s
    Device("h100", 67 * _T, 494.5 * _T, 989.5 * _T, 67 * _T, 3350 * _GB, 4e-6, int(79.1 * _GIB), 50 * _GB, (9, 0)),
    # NVIDIA A100 data sheet, 80 GB SXM: FP32 19.5, TF32 156, BF16 312, FP64 tensor core 19.5 TFLOPS; 2,039 GB/s
    Device("a100", 19.5 * _T, 156 * _T, 312 * _T, 19.5 * _T, 2039 * _GB, 4e-6, int(79.2 * _GIB), 24 * _GB, (8, 0)),
    # NVIDIA Ada GPU architecture paper, RTX 4090: FP32 82.6, TF32 82.6, FP16 with FP32 accumulate 165.2, FP64 1/64
    # of FP32; 24 GB at 1,008 GB/s
    Device(
        "rtx4090", 82.6 * _T, 82.6 * _T, 165.2 * _T, 1.29 * _T, 1008 * _GB, 4e-6, int(23.6 * _GIB), 22 * _GB, (8, 9)
    ),
    # NVIDIA Turing GPU architecture paper, RTX 2080 Ti reference: FP32 13.4, FP16 with FP32 accumulate 53.8, FP64 1/32
    # of FP32; no TF32; 11 GB at 616 GB/s
    Device(
        "rtx2080ti", 13.4 * _T, 13.4 * _T, 53.8 * _T, 0.42 * _T, 616 * _GB, 4e-6, int(10.7 * _GIB), 12 * _GB, (7, 5)
    ),
    # From no vendor: two cores at 2.5 GHz with two 8-wide multiply-add units each reach 160 GFLOP/s; two thirds of it in
    # practice. One channel of memory. Half precision is computed in float32.
    Device("cpu", 100e9, 100e9, 100e9, 50e9, 20 * _GB, 2e-6, 16 * _GIB, 10 * _GB),
)
_BY_NAME = {d.name: d for d in _TABLE}


def names() -> list[str]:
    """The names of devices that `get` accepts."""
    return list(_BY_NAME)


def is_known(name: str) -> bool:
    """Whether `get` knows a device of this name."""
    return name.lower().replace(" ", "") in _BY_NAME


def get(name: str) -> Device:
    """The device called `name` ("h200", "a100", "cpu", …).

    Raises
    ------
    UsageError : no such device; the message lists the known names.
    """
    found = _BY_NAME.get(name.lower().replace(" ", "")) if isinstance(name, str) else None
    if found is None:
        raise UsageError(f"device {value(name)} is unknown; choose one of {', '.join(names())}")
    return found


def capability(name: str | None) -> tuple[int, int] | None:
    """The compute capability of the GPU called `name`; None: no device is named, or it is no GPU.

    Raises
    ------
    UsageError : no such device.
    """
    return None if name is None else get(name).capability


def closest(device: torch.device) -> Device:
    """The table entry for a torch device: a present GPU by its own name, the H100 for any other GPU, else "cpu"."""
    import torch

    if device.type != "cuda":
        return get("cpu")
    if torch.cuda.is_available() and (device.index or 0) < torch.cuda.device_count():
        own = torch.cuda.get_device_name(device).lower().replace(" ", "")
        return next((d for d in _TABLE if d.name in own), get("h100"))
    return get("h100")


def roofline(device: Device, flops: float, bytes_moved: float, dtype: torch.dtype, *, tf32: bool = False) -> float:
    """Seconds of an operator: its arithmetic or its memory traffic, whichever is slower, plus the launch.

    dtype : type of the arithmetic. tf32 : float32 matrix products may use TF32.
    """
    import torch

    if dtype in (torch.float16, torch.bfloat16) or dtype.itemsize == 1:
        peak = device.half_flop_per_s
    elif dtype in (torch.float64, torch.complex128):
        peak = device.float64_flop_per_s
    else:
        peak = device.tf32_flop_per_s if tf32 else device.float32_flop_per_s
    return max(flops / peak, bytes_moved / device.memory_bytes_per_s) + device.launch_s

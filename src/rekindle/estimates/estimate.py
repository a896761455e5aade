"""An estimate: the memory of one plain training step, by what takes it, when, and in which modules.

Below: the memory that a device takes beside the bytes of storages, for its allocator and the framework.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from html import escape
from typing import Any

from ..printed import name
from ..saying.sizes import format_bytes

FORMAT = "rekindle.estimate/1"
PARTS = (
    ("parameters", "parameter_bytes"), ("buffers", "buffer_bytes"), ("gradients", "gradient_bytes"),
    ("optimizer state", "optimizer_bytes"), ("inputs", "input_bytes"), ("activations", "activation_bytes"),
    ("workspace", "workspace_bytes"), ("allocator rounding", "rounding_bytes"), ("framework", "overhead_bytes"),
)  # fmt: skip
# An estimate for a CPU is off by at most this share of the measured peak, or these bytes, whichever is larger: of a small model
# one tensor that a kernel copies is a large part.
OFF_SHARE, OFF_BYTES = 0.05, 2**20
PATH_MOST = 36  # letters of a module's path in a table


@dataclass(frozen=True)
class Band:
    """How far estimates may be from measured steps, and how far they were.

    low, high : (estimated - measured) / measured, at their extremes. steps : measured steps. source : the file of their
        figures.
    """

    low: float
    high: float
    steps: int
    source: str

    @property
    def words(self) -> str:
        """ "within 5 % or 1.0 MiB, whichever is larger; -0.30 % to +1.20 % off in 60 measured steps"."""
        found = f"{100 * self.low:+.2f} % to {100 * self.high:+.2f} % off in {self.steps} measured steps"
        return f"within {100 * OFF_SHARE:g} % or {format_bytes(OFF_BYTES)}, whichever is larger; {found}"

    def around(self, estimated: int) -> tuple[int, int]:
        """The least and the most bytes that a measured step may take, where this many were estimated."""
        low, high = estimated / (1 + OFF_SHARE), estimated / (1 - OFF_SHARE)
        return max(0, min(int(low), estimated - OFF_BYTES)), max(int(high), estimated + OFF_BYTES)


# `benchmarks/estimate.py` measures the steps; tests/unit/test_estimates.py holds these figures to its file.
CPU_BAND = Band(-0.0004, 0.0012, 55, "benchmarks/results/2026-11-25-estimate.jsonl")


@dataclass(frozen=True)
class ModuleFigures:
    """A module and what its own operators save for backward, submodules left out.

    path : its name in the model. saved_bytes : bytes that live when forward has ended. recompute_seconds : of its forward.
    """

    path: str
    saved_bytes: int
    recompute_seconds: float

    @property
    def bytes_per_second(self) -> float | None:
        """Bytes that are spared for each second of recomputing; None where recomputing takes no time."""
        return self.saved_bytes / self.recompute_seconds if self.recompute_seconds > 0 else None


@dataclass(frozen=True)
class Estimate:
    """The memory of one plain training step at its peak: forward, loss, backward, and the optimizer's second or later step.

    peak_bytes : all of it; the nine sizes below add up to it.
    parameter_bytes, buffer_bytes, input_bytes, optimizer_bytes : held before the step and after it.
    gradient_bytes : gradients of parameters that exist at the peak. activation_bytes : what else the step has made by then.
    workspace_bytes : memory of the kernel that runs at the peak; in the optimizer's step, its temporary tensors too.
    rounding_bytes, overhead_bytes : of a GPU's allocator, and of the framework on a GPU; 0 on the CPU.
    phase, op : when the peak is reached: "forward", "backward" or "optimizer step", and the operator that runs.
    phases : (phase, peak bytes in it).
    floor_bytes, floor_op : about the least that any plan can reach: the largest working set of one operator, or the optimizer's
        step. `rekindle.plan` proves its own bound.
    modules : the heaviest modules by bytes saved for backward.
    seconds : of the step by the roofline of the device. device : its name.
    optimizer, gradients : as they were given.
    band : how far estimates were from measured steps; None: none were measured on this kind of device.
    notes : what is left out, in words. took_seconds : how long the estimate took.
    """

    model: str
    peak_bytes: int
    parameter_bytes: int
    buffer_bytes: int
    gradient_bytes: int
    optimizer_bytes: int
    input_bytes: int
    activation_bytes: int
    workspace_bytes: int
    rounding_bytes: int
    overhead_bytes: int
    phase: str
    op: str
    phases: tuple[tuple[str, int], ...]
    floor_bytes: int
    floor_op: str
    modules: tuple[ModuleFigures, ...]
    seconds: float
    device: str
    optimizer: str
    gradients: str
    band: Band | None
    notes: tuple[str, ...]
    took_seconds: float

    @property
    def range_bytes(self) -> tuple[int, int] | None:
        """The least and the most bytes that a measured step may take by the error band; None: there is no band."""
        return None if self.band is None else self.band.around(self.peak_bytes)

    @property
    def sentence(self) -> str:
        """One plain sentence: how much, how sure, where the peak is."""
        sure = "not measured on a GPU" if self.band is None else self.band.words
        return (
            f"takes {format_bytes(self.peak_bytes)} ({sure}), at its peak in the {self.phase} at {name(self.op)}; "
            f"no plan goes below about {format_bytes(self.floor_bytes)}, set by {name(self.floor_op)}"
        )

    @property
    def assumed(self) -> str:
        """The loop that is assumed, in words."""
        kept = "kept from step to step" if self.gradients == "kept" else "set to None before each step"
        steps = "no optimizer" if self.optimizer == "none" else f"{self.optimizer}, second or later step"
        return (
            f"{steps}; gradients {kept}; results held to the end of the step; seconds by the roofline of {self.device}"
        )

    def __str__(self) -> str:
        rows = [(k, format_bytes(getattr(self, field))) for k, field in PARTS if getattr(self, field)]
        rows += [("peak", format_bytes(self.peak_bytes))]
        rows += [(f"  in the {phase}", format_bytes(size)) for phase, size in self.phases]
        width = max(len(k) for k, _ in rows)
        lines = [f"{k:<{width}}  {v:>10}" for k, v in rows]
        return "\n".join([*lines, *self.module_lines, self.sentence, f"assumed: {self.assumed}", *self.notes])

    @property
    def module_lines(self) -> list[str]:
        """The table of the heaviest modules as lines of text."""
        if not self.modules:
            return []
        head = f"{'saved for backward by':<{PATH_MOST}}  {'bytes':>10}  {'recompute':>10}  {'per second':>12}"
        return [head, *(f"{short(m.path):<{PATH_MOST}}  {format_bytes(m.saved_bytes):>10}  "
                        f"{format_seconds(m.recompute_seconds):>10}  {rate(m):>12}" for m in self.modules)]  # fmt: skip

    def _repr_html_(self) -> str:
        return f"<pre>{escape(str(self))}</pre>"

    def to_json(self) -> dict[str, Any]:
        """The document `rekindle.estimate/1`: every field, with the rates of the modules."""
        modules = [asdict(m) | {"bytes_per_second": m.bytes_per_second} for m in self.modules]
        phases = dict(self.phases)
        return {"format": FORMAT} | asdict(self) | {
            "modules": modules, "phases": phases, "range_bytes": self.range_bytes, "notes": list(self.notes),
        }  # fmt: skip


def short(path: str) -> str:
    """A path that is safe to print; of a long one, its end."""
    path = name(path)
    return path if len(path) <= PATH_MOST else f"…{path[1 - PATH_MOST :]}"


def format_seconds(s: float) -> str:
    """0.0123 -> "12.3 ms"."""
    return f"{s:.2f} s" if s >= 1 else f"{1e3 * s:.1f} ms" if s >= 1e-3 else f"{1e6 * s:.0f} µs"


def rate(m: ModuleFigures) -> str:
    """The bytes that are spared for each second of recomputing, as a table shows them."""
    found = m.bytes_per_second
    return "free" if found is None else f"{format_bytes(found)}/s"


MIB = 2**20
BLOCK_BYTES = 512  # CUDA's allocator rounds every size up to it
LARGE_BYTES = 10 * MIB  # a larger storage gets a segment of its own, in whole units of SEGMENT_BYTES
SEGMENT_BYTES = 2 * MIB


@dataclass(frozen=True)
class Framework:
    """Bytes that a process takes on a GPU before its first tensor, and for libraries. Guesses: none was measured.

    context : the driver's context with the kernels that PyTorch loads. products : the workspace that PyTorch gives to cuBLAS
    by default; products_hopper : on GPUs of compute capability 9.
    """

    context: int = 600 * MIB
    products: int = 8 * MIB + 128 * 1024
    products_hopper: int = 32 * MIB


FRAMEWORK = Framework()
HOPPER = (9, 0)


def rounded_on_gpu(size: int) -> int:
    """Bytes that CUDA's allocator takes for a storage of `size` bytes.

    >>> [rounded_on_gpu(n) for n in (0, 1, 512, 513, 10 * 2**20 + 1)]
    [0, 512, 512, 1024, 12582912]
    """
    unit = SEGMENT_BYTES if size > LARGE_BYTES else BLOCK_BYTES
    return -(-size // unit) * unit


def as_it_is(size: int) -> int:
    """Bytes that the CPU's allocator takes for a storage of `size` bytes."""
    return size


def framework_bytes(capability: tuple[int, int] | None) -> int:
    """Bytes of the framework on a GPU of this compute capability; 0 on the CPU."""
    return 0 if capability is None else FRAMEWORK.context


def products_workspace(capability: tuple[int, int] | None) -> int:
    """Bytes of the workspace that matrix products have on a GPU of this compute capability; 0 on the CPU."""
    if capability is None:
        return 0
    return FRAMEWORK.products_hopper if capability >= HOPPER else FRAMEWORK.products

"""Attention as a GPU that is not here computes it, in graphs that are for planning.

On the CPU, attention with dropout runs as plain operators, whose results grow with the square of the length. A GPU has fused
kernels for it, whose results grow with the length. Inside `AttentionOfGpu`, `scaled_dot_product_attention` of tensors on the
CPU is captured as PyTorch would run it on the GPU: flash attention, memory-efficient attention or plain operators. Where the
CPU has a fused kernel too, its op stays: its results have the sizes of the GPU's, and it can run here. (The GPU rounds one
small result up, to 32 positions.)

Source of the rules: aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and attention.cpp, restated in Python. cuDNN's kernel
counts as flash attention: its results have the same sizes.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode

from ..private import attention_is_fused_here

aten = torch.ops.aten
FLASH, EFFICIENT, PLAIN = "flash attention", "memory-efficient attention", "plain attention"
_HALF = (torch.float16, torch.bfloat16)

# Limits of the GPU's kernels, in PyTorch's source.
# Least compute capability for flash attention, and for bfloat16 in memory-efficient attention.
FLASH_CAPABILITY = (8, 0)
FLASH_HEAD_MOST, FLASH_HEAD_MULTIPLE = 256, 8  # elements of the largest head; heads are padded to a multiple
TENSOR_CORE_BYTES = 16  # heads must fill lines of so many bytes where tensor cores are used
BIAS_MULTIPLE = 8  # elements: strides of a bias are padded to a multiple


@dataclass(frozen=True)
class Call:
    """One call of `scaled_dot_product_attention`; the names are its parameters. Tensors are [batch, heads, length, size]."""

    query: Tensor
    key: Tensor
    value: Tensor
    attn_mask: Tensor | None = None
    dropout_p: float = 0.0
    is_causal: bool = False
    scale: float | None = None
    enable_gqa: bool = False

    @property
    def tensors(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.query, self.key, self.value

    def cast(self) -> Call:
        """The call with the tensors that autocast would give the kernel."""
        kind = self.query.device.type
        if not torch.is_autocast_enabled(kind):
            return self
        dtype = torch.get_autocast_dtype(kind)

        def lower(t: Tensor | None) -> Any:
            return t.to(dtype) if t is not None and t.is_floating_point() and t.dtype != torch.float64 else t

        return replace(
            self, query=lower(self.query), key=lower(self.key), value=lower(self.value), attn_mask=lower(self.attn_mask)
        )


def kernel(call: Call, capability: tuple[int, int]) -> str:
    """The kernel that PyTorch chooses on a GPU of this compute capability: FLASH, EFFICIENT or PLAIN."""
    q, k, v = call.tensors
    if any(t.dim() != 4 or t.numel() == 0 or t.stride(-1) != 1 and t.shape[-1] != 1 for t in call.tensors):
        return PLAIN
    if not (q.dtype == k.dtype == v.dtype and q.shape[0] == k.shape[0] == v.shape[0] and k.shape[2] == v.shape[2]):
        return PLAIN
    modern, head = capability >= FLASH_CAPABILITY, q.shape[-1]
    grouped = call.enable_gqa and q.shape[1] % k.shape[1] == 0 and q.shape[1] % v.shape[1] == 0
    alike = q.shape[1] == k.shape[1] == v.shape[1]
    if (
        torch.backends.cuda.flash_sdp_enabled()
        and modern
        and q.dtype in _HALF
        and call.attn_mask is None
        and (alike or grouped)
        and head == k.shape[-1] == v.shape[-1] <= FLASH_HEAD_MOST
        and not (call.is_causal and q.shape[2] != k.shape[2])
    ):
        return FLASH
    # Without tensor cores single numbers are read; float32 uses them on GPUs of the same capability as flash attention.
    line = TENSOR_CORE_BYTES // q.dtype.itemsize if modern or q.dtype in _HALF else 1
    if (
        torch.backends.cuda.mem_efficient_sdp_enabled()
        and q.dtype in (torch.float32, torch.float16, *([torch.bfloat16] if modern else []))
        and alike
        and head == k.shape[-1]
        and head % line == 0
        and v.shape[-1] % line == 0
    ):
        return EFFICIENT
    return PLAIN


class AttentionOfGpu(TorchFunctionMode):
    """A mode in which attention on the CPU is captured as a GPU's. Such graphs can run on fake tensors alone.

    capability : compute capability of the GPU. replaced : the kernels that stand in place of the CPU's.
    """

    def __init__(self, capability: tuple[int, int]) -> None:
        super().__init__()
        self._capability = capability
        self.replaced: set[str] = set()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is not F.scaled_dot_product_attention or (args[0] if args else kwargs["query"]).device.type != "cpu":
            return func(*args, **(kwargs or {}))
        call = Call(*args, **(kwargs or {})).cast()
        there = kernel(call, self._capability)
        pads = there == FLASH and call.query.shape[-1] % FLASH_HEAD_MULTIPLE  # copies that the CPU does not make
        if attention_is_fused_here(call) == (there != PLAIN) and not pads:
            return func(*args, **(kwargs or {}))
        self.replaced.add(there)
        return _RUN[there](call)


def _flash(call: Call) -> Tensor:
    size = call.query.shape[-1]
    pad = -size % FLASH_HEAD_MULTIPLE
    q, k, v = (F.pad(t, (0, pad)) if pad else t for t in call.tensors)
    scale = 1 / math.sqrt(size) if call.scale is None else call.scale
    out = aten._scaled_dot_product_flash_attention(q, k, v, call.dropout_p, call.is_causal, False, scale=scale)[0]
    return out[..., :size] if pad else out


def _efficient(call: Call) -> Tensor:
    learns = torch.is_grad_enabled() and any(t.requires_grad for t in call.tensors)
    bias = None if call.attn_mask is None else _bias(call, call.attn_mask)
    return aten._scaled_dot_product_efficient_attention(
        *call.tensors, bias, learns, call.dropout_p, call.is_causal, scale=call.scale
    )[0]


def _bias(call: Call, mask: Tensor) -> Tensor:
    """The mask as numbers that are added, laid out as the kernel needs it."""
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=call.query.dtype).masked_fill_(mask.logical_not(), -math.inf)
    multiple, length = BIAS_MULTIPLE, mask.shape[-1]
    if mask.stride(-1) != 1 or any(n % multiple for n in mask.stride()[:-1]):
        mask = F.pad(mask, (0, multiple - length % multiple))[..., :length]
    return mask.expand(*call.query.shape[:3], call.key.shape[2])


def _plain(call: Call) -> Tensor:
    return aten._scaled_dot_product_attention_math(
        *call.tensors, call.attn_mask, call.dropout_p, call.is_causal, None,
        scale=call.scale, enable_gqa=call.enable_gqa,
    )[0]  # fmt: skip


_RUN = {FLASH: _flash, EFFICIENT: _efficient, PLAIN: _plain}

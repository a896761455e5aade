"""Non-maximum suppression in plain PyTorch, for a torchvision whose compiled ops do not load.

`complete_torchvision.py` copies this file into the installed torchvision, as `torchvision/_plain_ops.py`.
"""

from __future__ import annotations

import torch

_library: torch.library.Library | None = None  # an op lives as long as the Library that defined it


def define() -> None:
    """Register `torchvision::nms` and `torchvision::qnms` with PyTorch, for every device, where nobody did before."""
    global _library
    if _library is not None:
        return
    _library = torch.library.Library("torchvision", "FRAGMENT")
    for op in ("nms", "qnms"):
        if not hasattr(torch.ops.torchvision, op):
            _library.define(f"{op}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        _library.impl(op, keep_best, "CompositeExplicitAutograd")


def keep_best(dets: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """The boxes that overlap no kept box of a higher score by more than `iou_threshold`.

    dets : [n, 4], corners (x1, y1, x2, y2); scores : [n]. Integers and half precision are computed in float32.
    Returns int64 positions in dets, highest score first; of equal scores the earlier box goes first.
    Takes O(kept * n) time and O(n) memory. The arithmetic is in the order of torchvision's C++ loop.
    """
    torch._check(dets.dim() == 2 and dets.size(1) == 4, lambda: f"boxes must be [n, 4], not {list(dets.shape)}")
    torch._check(scores.shape == dets.shape[:1], lambda: f"scores must be [{dets.size(0)}], not {list(scores.shape)}")
    order = scores.argsort(descending=True, stable=True)
    boxes = dets[order]
    boxes = boxes if boxes.dtype in (torch.float32, torch.float64) else boxes.float()
    x1, y1, x2, y2 = boxes.unbind(1)
    areas = (x2 - x1) * (y2 - y1)
    alive = torch.ones_like(areas, dtype=torch.bool)
    kept = []
    for i in range(len(boxes)):
        if not alive[i]:
            continue
        kept.append(i)
        rest = slice(i + 1, None)
        width = (torch.minimum(x2[i], x2[rest]) - torch.maximum(x1[i], x1[rest])).clamp(min=0)
        height = (torch.minimum(y2[i], y2[rest]) - torch.maximum(y1[i], y1[rest])).clamp(min=0)
        overlap = width * height
        iou = overlap / (areas[i] + areas[rest] - overlap)
        alive[rest] &= ~(iou.double() > iou_threshold)  # as C++ compares a float with a double
    return order[torch.tensor(kept, dtype=torch.int64, device=order.device)]


def nms(boxes: torch.Tensor, scores: torch.Tensor, iou_threshold: float) -> torch.Tensor:
    """`torchvision.ops.nms` without its check that the compiled ops are loaded. See `keep_best`."""
    if not torch.jit.is_scripting() and boxes.is_quantized:
        return torch.ops.torchvision.qnms(boxes.int_repr(), scores.int_repr(), iou_threshold)
    return torch.ops.torchvision.nms(boxes, scores, iou_threshold)

"""Sizes of results that PyTorch's shape rules do not know: the workspaces that fused recurrent kernels save for backward.

The shape rules return an empty byte tensor; the kernels return megabytes. One run on made-up inputs gives the true size.
"""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import fx

from ..capture.captured import Captured, joint_fake_mode
from ..operators import rules
from .made_up import as_call

log = logging.getLogger(__name__)


def learn_sizes(c: Captured) -> None:
    """Give every empty byte result in the graph its true size, if the op's device is present."""
    mode = joint_fake_mode(c.graph_module)
    known: dict[Any, list[int]] = {}
    for n in c.nodes:
        members = n.meta.get("val")
        if not isinstance(members, tuple | list) or mode is None:
            continue
        unknown = [i for i, t in enumerate(members) if isinstance(t, torch.Tensor) and _is_unknown(t)]
        if not unknown:
            continue
        key, run = as_call(n)
        if key not in known:
            try:
                out = run()
                known[key] = [x.numel() if isinstance(x, torch.Tensor) else 0 for x in out]
            except Exception as e:
                log.debug("size of what %s returns is not known: %s", n.target, e)
                continue
        grown = list(members)
        for i in unknown:
            with mode:
                grown[i] = torch.empty(known[key][i], dtype=torch.uint8, device=members[i].device)
            _replace(n, i, grown[i])
        n.meta["val"] = tuple(grown)


def _is_unknown(t: torch.Tensor) -> bool:
    return t.dtype == torch.uint8 and t.numel() == 0


def _replace(n: fx.Node, index: int, t: torch.Tensor) -> None:
    """Set the fake tensor of the nodes that take member `index` of the results of n, and of their aliases."""
    names = [u for u in n.users if getattr(u.target, "__name__", "") == "getitem" and u.args[1] == index]
    while names:
        u = names.pop()
        u.meta["val"] = t
        names += [w for w in u.users if w.target in rules.PASS_THROUGH]

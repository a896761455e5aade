"""Calls of ATen ops by name, to be cut into slices: every op that has a rule, on the CPU, by sizes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch

aten = torch.ops.aten
F64 = torch.float64


@dataclass(frozen=True)
class Sizes:
    """batch, channels (per group), outputs (per group), side of a plane, length of a row, groups."""

    n: int = 4
    c: int = 4
    o: int = 2
    side: int = 5
    row: int = 6
    groups: int = 2


class Maker:
    """Makes the arguments of one call, the same ones for the same sizes."""

    def __init__(self, sizes: Sizes):
        self.s, self.generator = sizes, torch.Generator().manual_seed(0)

    def real(self, *shape: int) -> torch.Tensor:
        return torch.randn(shape, dtype=F64, generator=self.generator)

    def above(self, *shape: int) -> torch.Tensor:
        """Between 0.1 and 0.9."""
        return torch.rand(shape, dtype=F64, generator=self.generator) * 0.8 + 0.1

    def index(self, below: int, *shape: int) -> torch.Tensor:
        return torch.randint(below, shape, generator=self.generator)

    def coin(self, *shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=self.generator) < 0.5


Made = tuple[Any, tuple[Any, ...], dict[str, Any]]  # op, args, kwargs
CASES: dict[str, Callable[[Maker], Made]] = {}


def case(make: Callable[[Maker], Any]) -> Callable[[Maker], Any]:
    """Add a function that gives (op, *args), or (op, *args, kwargs as a dict), under its name."""

    def made(m: Maker) -> Made:
        op, *args = make(m)
        kwargs = args.pop() if args and isinstance(args[-1], dict) else {}
        return op, tuple(args), kwargs

    CASES[make.__name__.strip("_")] = made
    return make


def cases(make: Callable[[Maker], Iterator[tuple[str, Any]]]) -> Callable[[Maker], Any]:
    """Add all calls of a function that yields (name, (op, *args)), the same names for all sizes."""
    for i, (name, _) in enumerate(make(Maker(Sizes()))):

        def one(m: Maker, i: int = i) -> Any:
            return list(make(m))[i][1]

        one.__name__ = name
        case(one)
    return make


# -- products ----------------------------------------------------------------------------------------------------------
@cases
def convolutions(m: Maker) -> Iterator[tuple[str, Any]]:
    s = m.s
    for rank in (1, 2, 3):
        one, plane, kernel = [1] * rank, [s.side] * rank, [3] * rank
        for transposed in (False, True):
            for groups in (1, s.groups):
                c, o = s.c * groups, s.o * groups
                weight = m.real(c, s.o, *kernel) if transposed else m.real(o, s.c, *kernel)
                x, same = m.real(s.n, c, *plane), (one, one, one, transposed, [0] * rank, groups)
                name = f"{rank}{'_transposed' * transposed}{'_groups' * (groups > 1)}"
                yield f"convolution_{name}", (aten.convolution.default, x, weight, None, *same)
                yield f"convolution_{name}_bias", (aten.convolution.default, x, weight, m.real(o), *same)
                grad = m.real(s.n, o, *plane)
                for mask in ([True] * 3, [True, True, False], [True, False, False], [False, True, False]):
                    parts = "".join("iwb"[i] for i in range(3) if mask[i])
                    op = aten.convolution_backward.default
                    yield f"convolution_backward_{name}_{parts}", (op, grad, x, weight, [o], *same, mask)


@cases
def matrices(m: Maker) -> Iterator[tuple[str, Any]]:
    n, k, o, b = m.s.n, m.s.row, m.s.c, m.s.o
    yield "mm", (aten.mm.default, m.real(n, k), m.real(k, o))
    for name, shape in (("row", (o,)), ("column", (n, 1)), ("whole", (n, o)), ("number", ())):
        yield f"addmm_{name}", (aten.addmm.default, m.real(*shape), m.real(n, k), m.real(k, o))
        alpha = {"beta": 2, "alpha": 3}
        yield f"baddbmm_{name}", (aten.baddbmm.default, m.real(*shape), m.real(b, n, k), m.real(b, k, o), alpha)
    yield "bmm", (aten.bmm.default, m.real(b, n, k), m.real(b, k, o))
    yield "mv", (aten.mv.default, m.real(n, k), m.real(k))
    yield "dot", (aten.dot.default, m.real(k), m.real(k))


@cases
def attention(m: Maker) -> Iterator[tuple[str, Any]]:
    b, h, n = m.s.n, m.s.c, m.s.row
    q, k, v, grad = (m.real(b, h, n, 8) for _ in range(4))
    masks = {"plain": None, "rows": m.real(n, n), "batch": m.real(b, 1, n, n), "heads": m.real(1, h, n, n)}
    forward, backward = (
        aten._scaled_dot_product_flash_attention_for_cpu.default,
        aten._scaled_dot_product_flash_attention_for_cpu_backward.default,
    )
    for name, mask in masks.items():
        yield f"attention_{name}", (forward, q, k, v, 0.0, False, {"attn_mask": mask, "scale": 0.3})
        out, logsumexp = forward(q, k, v, attn_mask=mask)
        call = (backward, grad, q, k, v, out, logsumexp, 0.0, False, {"attn_mask": mask})
        yield f"attention_backward_{name}", call
    causal = (forward, q, k, v, 0.0, True, {})
    yield "attention_causal", causal


# -- layers ------------------------------------------------------------------------------------------------------------
@cases
def norms(m: Maker) -> Iterator[tuple[str, Any]]:
    s = m.s
    n, c, side, groups = s.n, s.c * s.groups, s.side, s.groups
    x, grad, w, b = m.real(n, s.row, c), m.real(n, s.row, c), m.real(c), m.real(c)
    yield "layer_norm", (aten.native_layer_norm.default, x, [c], w, b, 1e-5)
    _, mean, rstd = aten.native_layer_norm(x, [c], w, b, 1e-5)
    for name, mask in (("all", [True] * 3), ("input", [True, False, False]), ("weights", [False, True, True])):
        yield f"layer_norm_backward_{name}", (
            aten.native_layer_norm_backward.default, grad, x, [c], mean, rstd, w, b, mask)  # fmt: skip
    yield "rms_norm", (aten._fused_rms_norm.default, x, [c], w, 1e-5)

    x, grad, mean, var = m.real(n, c, side, side), m.real(n, c, side, side), m.real(c), m.above(c)
    yield "group_norm", (aten.native_group_norm.default, x, w, b, n, c, side * side, groups, 1e-5)
    _, means, rstds = aten.native_group_norm(x, w, b, n, c, side * side, groups, 1e-5)
    for name, mask in (("all", [True] * 3), ("input", [True, False, False]), ("weights", [False, True, True])):
        yield f"group_norm_backward_{name}", (
            aten.native_group_norm_backward.default, grad, x, means, rstds, w, n, c, side * side, groups, mask)  # fmt: skip

    functional = aten._native_batch_norm_legit_functional.default
    for name, training in (("train", True), ("eval", False)):
        yield f"batch_norm_functional_{name}", (functional, x, w, b, mean, var, training, 0.1, 1e-5)
        yield f"batch_norm_{name}", (aten.native_batch_norm.default, x, w, b, mean, var, training, 0.1, 1e-5)
        saved = functional(x, w, b, mean, var, training, 0.1, 1e-5)[1:3]
        yield f"batch_norm_backward_{name}", (
            aten.native_batch_norm_backward.default, grad, x, w, mean, var, *saved, training, 1e-5, [True] * 3)  # fmt: skip
        yield f"batch_norm_backward_{name}_input", (
            aten.native_batch_norm_backward.default, grad, x, None, mean, var, *saved, training, 1e-5,
            [True, False, False])  # fmt: skip
    yield "batch_norm_no_stats", (aten._native_batch_norm_legit.no_stats, x, w, b, True, 0.1, 1e-5)
    yield "batch_norm_no_training", (aten._native_batch_norm_legit_no_training.default, x, w, b, mean, var, 0.1, 1e-5)


@cases
def planes(m: Maker) -> Iterator[tuple[str, Any]]:
    """Ops on lines, planes and volumes, with their backwards, with a batch and without."""
    n, c, side = m.s.n, m.s.c, m.s.side
    for rank in (2, 3):
        for kind, lead in (("", (n, c)), ("_of_one", (c,))):
            x, two, one, zero = m.real(*lead, *[side] * rank), [2] * rank, [1] * rank, [0] * rank
            name = f"{rank}d{kind}"
            pool, back = (getattr(aten, f"max_pool{rank}d_with_indices{phase}").default for phase in ("", "_backward"))
            out, at = pool(x, two, two, zero, one, False)
            yield f"max_pool{name}", (pool, x, two, two, zero, one, False)
            yield f"max_pool{name}_backward", (back, torch.cos(out), x, two, two, zero, one, False, at)
            pool, back = (getattr(aten, f"avg_pool{rank}d{phase}").default for phase in ("", "_backward"))
            settings = (two, two, zero, False, True, None)
            yield f"avg_pool{name}", (pool, x, *settings)
            yield f"avg_pool{name}_backward", (back, torch.cos(pool(x, *settings)), x, *settings)
            pool, back = (getattr(aten, f"_adaptive_avg_pool{rank}d{phase}").default for phase in ("", "_backward"))
            yield f"adaptive_avg_pool{name}", (pool, x, two)
            yield f"adaptive_avg_pool{name}_backward", (back, torch.cos(pool(x, two)), x)
            forward, back = (getattr(aten, f"adaptive_max_pool{rank}d{phase}").default for phase in ("", "_backward"))
            out, at = forward(x, two)
            yield f"adaptive_max_pool{name}", (forward, x, two)
            yield f"adaptive_max_pool{name}_backward", (back, torch.cos(out), x, at)
    for rank in (1, 2, 3):
        x = m.real(n, c, *[side] * rank)
        for op in ("reflection_pad", "replication_pad"):
            pad, back = (getattr(aten, f"{op}{rank}d{phase}").default for phase in ("", "_backward"))
            yield f"{op}{rank}d", (pad, x, [1] * (2 * rank))
            yield f"{op}{rank}d_backward", (back, torch.cos(pad(x, [1] * (2 * rank))), x, [1] * (2 * rank))
        larger = [2 * side] * rank
        smooth = {1: "linear1d", 2: "bilinear2d", 3: "trilinear3d"}[rank]
        kinds = [
            (f"upsample_nearest{rank}d", ()),
            (f"_upsample_nearest_exact{rank}d", ()),
            (f"upsample_{smooth}", (False,)),
        ]
        if rank == 2:
            kinds += [
                (op, (False,)) for op in ("upsample_bicubic2d", "_upsample_bilinear2d_aa", "_upsample_bicubic2d_aa")
            ]
        for op, corners in kinds:
            yield op.strip("_"), (getattr(aten, op).default, x, larger, *corners)
            back = getattr(aten, f"{op}_backward").default
            yield f"{op.strip('_')}_backward", (back, m.real(n, c, *larger), larger, list(x.shape), *corners)


@cases
def losses(m: Maker) -> Iterator[tuple[str, Any]]:
    n, c, side = m.s.n, m.s.c, m.s.side
    x, y, rows = m.above(n, c), m.above(n, c), m.index(c, n)
    for kind, reduction in (("none", 0), ("sum", 2)):
        grad = m.real(n, c) if kind == "none" else m.real()
        for loss, more in (
            ("mse_loss", ()),
            ("smooth_l1_loss", (0.5,)),
            ("huber_loss", (0.5,)),
            ("soft_margin_loss", ()),
        ):
            yield f"{loss}_{kind}", (getattr(aten, loss).default, x, y, reduction, *more)
            yield f"{loss}_backward_{kind}", (getattr(aten, f"{loss}_backward").default, grad, x, y, reduction, *more)
        weight = m.above(n, c)
        yield f"binary_cross_entropy_{kind}", (aten.binary_cross_entropy.default, x, y, weight, reduction)
        back = aten.binary_cross_entropy_backward.default
        yield f"binary_cross_entropy_backward_{kind}", (back, grad, x, y, weight, reduction)
    for kind, reduction in (("none", 0), ("mean", 1), ("sum", 2)):
        total = torch.tensor(float(n), dtype=F64)
        grad = m.real(n) if kind == "none" else m.real()
        yield f"nll_loss_backward_{kind}", (
            aten.nll_loss_backward.default, grad, m.real(n, c), rows, m.above(c), reduction, -100, total)  # fmt: skip
        grad = m.real(n, side, side) if kind == "none" else m.real()
        yield f"nll_loss2d_backward_{kind}", (
            aten.nll_loss2d_backward.default, grad, m.real(n, c, side, side), m.index(c, n, side, side), None, reduction,
            -100, total)  # fmt: skip


@cases
def embeddings(m: Maker) -> Iterator[tuple[str, Any]]:
    n, row, c = m.s.n, m.s.row, m.s.c
    yield "embedding", (aten.embedding.default, m.real(7, c), m.index(7, n, row))
    for scaled in (False, True):
        op, grad = aten.embedding_dense_backward.default, m.real(n, row, c)
        yield f"embedding_backward{'_scaled' * scaled}", (op, grad, m.index(7, n, row), 7, 2, scaled)

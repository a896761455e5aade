"""More calls of ATen ops to be cut into slices: element by element, views, reductions and indexing."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from cut_cases import F64, Maker, aten, cases


@cases
def elements(m: Maker) -> Iterator[tuple[str, Any]]:
    n, c, row = m.s.n, m.s.c, m.s.row
    x, y, grad = m.real(n, c, row), m.real(n, c, row), m.real(n, c, row)
    yield "relu", (aten.relu.default, x)
    yield "add_row", (aten.add.Tensor, x, m.real(row), {"alpha": 2})
    yield "mul_column", (aten.mul.Tensor, m.real(c, 1), x)
    yield "div_number", (aten.div.Tensor, x, m.above())
    yield "pow", (aten.pow.Tensor_Scalar, x, 2)
    yield "where", (aten.where.self, m.coin(c, 1), x, m.real(n, 1, 1))
    yield "addcmul", (aten.addcmul.default, x, y, m.real(row))
    yield "frexp", (aten.frexp.Tensor, x)
    yield "masked_fill", (aten.masked_fill.Scalar, x, m.coin(c, row), 0.5)
    yield "masked_fill_tensor", (aten.masked_fill.Tensor, x, m.coin(n, 1, row), m.real())
    yield "maximum", (aten.max.other, x, y)
    yield "gelu_backward", (aten.gelu_backward.default, grad, x, {"approximate": "tanh"})
    yield "silu_backward", (aten.silu_backward.default, grad, x)
    yield "threshold_backward", (aten.threshold_backward.default, grad, x, 0)
    yield "dropout_backward", (aten.native_dropout_backward.default, grad, m.coin(n, c, row), 1.25)
    for name, more in (
        ("hardtanh", (-1, 1)), ("leaky_relu", (0.1, False)), ("softplus", (1, 20)),
        ("softshrink", (0.5,)), ("hardshrink", (0.5,)), ("mish", ()), ("hardswish", ()), ("hardsigmoid", ()),
    ):  # fmt: skip
        yield f"{name}_backward", (getattr(aten, f"{name}_backward").default, grad, x, *more)
    yield "elu_backward", (aten.elu_backward.default, grad, 1, 1, 1, False, x)
    buffer = aten.log_sigmoid_forward(x)[1]
    yield "log_sigmoid", (aten.log_sigmoid_forward.default, x)
    yield "log_sigmoid_backward", (aten.log_sigmoid_backward.default, grad, x, buffer)
    yield "prelu", (aten._prelu_kernel.default, x, m.real(1, c, 1))
    yield "prelu_backward", (aten._prelu_kernel_backward.default, x, m.real(1, c, 1), grad)
    yield "complex", (aten.complex.default, x, y)


@cases
def copies(m: Maker) -> Iterator[tuple[str, Any]]:
    n, c, row = m.s.n, m.s.c, m.s.row
    x = m.real(n, c, row)
    yield "clone", (aten.clone.default, x.transpose(0, 1), {"memory_format": torch.contiguous_format})
    yield "to_copy", (aten._to_copy.default, x, {"dtype": torch.float32})
    yield "copy", (aten.copy.default, x, m.real(c, 1))
    yield "fill", (aten.fill.Tensor, x, m.real())
    for name in ("detach", "alias", "lift_fresh", "lift_fresh_copy"):
        yield name, (getattr(aten, name).default, x)
    for name in ("empty_like", "zeros_like", "ones_like"):
        yield name, (getattr(aten, name).default, x, {"dtype": torch.float32})
    yield "full_like", (aten.full_like.default, x, 0.5)
    for name in ("zeros", "ones"):
        yield name, (getattr(aten, name).default, [n, c], {"dtype": F64})
    yield "empty", (aten.empty.memory_format, [n, c], {"dtype": F64})
    yield "full", (aten.full.default, [n, c], 0.5, {"dtype": F64})
    for name in ("new_empty", "new_zeros", "new_ones"):
        yield name, (getattr(aten, name).default, x, [n, c])
    yield "new_full", (aten.new_full.default, x, [n, c], 0.5)


@cases
def views(m: Maker) -> Iterator[tuple[str, Any]]:
    n, c, row = m.s.n, m.s.c, m.s.row
    x = m.real(n, c, 1, row)
    for name in ("view", "_unsafe_view", "reshape"):
        op = getattr(aten, name).default
        yield f"{name.strip('_')}_merging", (op, x, [n * c, row])
        yield f"{name.strip('_')}_splitting", (op, x, [1, n, c, row // 2, -1])
        yield f"{name.strip('_')}_to_a_row", (op, x, [-1])
    yield "view_of_bits", (aten.view.dtype, x, torch.int64)
    yield "expand", (aten.expand.default, x, [3, n, -1, 4, row])
    yield "as_strided", (aten.as_strided.default, m.real(), [n, c], [0, 0])
    yield "permute", (aten.permute.default, x, [3, 0, -2, 1])
    yield "transpose", (aten.transpose.int, x, 0, -1)
    yield "t", (aten.t.default, m.real(n, c))
    yield "t_of_row", (aten.t.default, m.real(n))
    yield "unsqueeze", (aten.unsqueeze.default, x, 1)
    yield "unsqueeze_last", (aten.unsqueeze.default, x, -1)
    yield "squeeze", (aten.squeeze.default, x)
    yield "squeeze_dim", (aten.squeeze.dim, x, 2)
    yield "squeeze_of_many", (aten.squeeze.dim, x, 1)
    yield "squeeze_dims", (aten.squeeze.dims, x, [0, -2])
    for d in (0, 1, -1):
        yield f"select_{d}", (aten.select.int, x, d, 1)
        yield f"unbind_{d}", (aten.unbind.int, x, d)
        yield f"select_backward_{d}", (aten.select_backward.default, torch.cos(x), [*x.shape[:d % 4], 3, *x.shape[d % 4:]], d % 4, 1)  # fmt: skip  # noqa: E501
        yield f"select_scatter_{d}", (aten.select_scatter.default, x, torch.cos(x.select(d, 0)), d, 1)
        yield f"split_{d}", (aten.split.Tensor, x, 1, d)
        sizes = [1, x.shape[d] - 1]
        yield f"split_with_sizes_{d}", (aten.split_with_sizes.default, x, sizes, d)
        for name, start, end in (("part", 1, x.shape[d]), ("all", 0, 2**63 - 1), ("whole", 0, x.shape[d])):
            piece = aten.slice(x, d, start, end)
            yield f"slice_{d}_{name}", (aten.slice.Tensor, x, d, start, end)
            yield f"slice_backward_{d}_{name}", (aten.slice_backward.default, piece, list(x.shape), d, start, end, 1)
            yield f"slice_scatter_{d}_{name}", (aten.slice_scatter.default, x, torch.cos(piece), d, start, end)
        yield f"cat_{d}", (aten.cat.default, [x, torch.cos(x), x], d)
        yield f"stack_{d}", (aten.stack.default, [x, torch.cos(x)], d)
        yield f"flip_{d}", (aten.flip.default, x, [d])
        yield f"roll_{d}", (aten.roll.default, x, [1], [d])
    yield "slice_every_second", (aten.slice.Tensor, x, 0, 0, 2**63 - 1, 2)
    yield "repeat", (aten.repeat.default, x, [2, 1, 3, 4, 1])
    yield "pad", (aten.constant_pad_nd.default, x, [1, 0, 0, 0, 0, -1], 0.5)
    yield "tril", (aten.tril.default, m.real(n, c, row, row))
    yield "triu", (aten.triu.default, m.real(n, row, row), 1)


@cases
def reductions(m: Maker) -> Iterator[tuple[str, Any]]:
    n, c, row = m.s.n, m.s.c, m.s.row
    x = m.real(n, c, row)
    yield "sum", (aten.sum.default, x)
    yield "sum_dims", (aten.sum.dim_IntList, x, [0, -1])
    yield "sum_of_all", (aten.sum.dim_IntList, x, None)
    yield "sum_kept", (aten.sum.dim_IntList, x, [1], True)
    yield "nansum", (aten.nansum.default, x, [1])
    yield "count_nonzero", (aten.count_nonzero.dim_IntList, m.coin(n, c), [0])
    for name in ("mean", "amax", "amin", "logsumexp"):
        op = aten.mean.dim if name == "mean" else getattr(aten, name).default
        yield name, (op, x, [1])
        yield f"{name}_kept", (op, x, [0, 2], True)
    for name in ("max", "min"):
        yield name, (getattr(aten, name).dim, x, 1)
    for name in ("argmax", "argmin"):
        yield name, (getattr(aten, name).default, x, -1)
    for name in ("any", "all"):
        yield name, (getattr(aten, name).dim, m.coin(n, c), 1)
    yield "prod", (aten.prod.dim_int, x, 1)
    yield "vector_norm", (aten.linalg_vector_norm.default, x, 2, [1], True)
    yield "norm", (aten.norm.ScalarOpt_dim, x, 2, [0])
    for name in ("var", "std", "var_mean", "std_mean"):
        yield name, (getattr(aten, name).correction, x, [1], {"correction": 0})
    yield "softmax", (aten._softmax.default, x, 1, False)
    yield "log_softmax", (aten._log_softmax.default, x, -1, False)
    yield "safe_softmax", (aten._safe_softmax.default, x, 2)
    yield "softmax_backward", (aten._softmax_backward_data.default, m.real(n, c, row), x, 1, F64)
    yield "log_softmax_backward", (aten._log_softmax_backward_data.default, m.real(n, c, row), x, -1, F64)
    for name in ("cumsum", "cumprod", "sort"):
        yield name, (getattr(aten, name).default, x, 1)
    yield "topk", (aten.topk.default, x, 2, 1)
    yield "glu", (aten.glu.default, m.real(n, 2 * c, row), 1)
    yield "glu_backward", (aten.glu_backward.default, x, m.real(n, 2 * c, row), 1)


@cases
def indexing(m: Maker) -> Iterator[tuple[str, Any]]:
    n, c, row = m.s.n, m.s.c, m.s.row
    x = m.real(n, c, row)
    yield "gather", (aten.gather.default, x, 1, m.index(c, n, 3, row))
    yield "gather_less", (aten.gather.default, x, 1, m.index(c, n, c, row - 1))
    yield "scatter", (aten.scatter.src, x, 1, torch.arange(c).expand(n, row, c).mT, m.real(n, c, row))
    yield "scatter_value", (aten.scatter.value, x, 2, m.index(row, n, c, 2), 0.5)
    yield "scatter_add", (aten.scatter_add.default, x, 0, m.index(n, 3, c, row), m.real(3, c, row))
    yield "index_select", (aten.index_select.default, x, 1, m.index(c, 5))
    rows, columns, last = m.index(n, 4, 1), m.index(c, 3), m.index(row, 4, 1)
    yield "index_first", (aten.index.Tensor, x, [m.index(n, 4, 2)])
    yield "index_middle", (aten.index.Tensor, x, [None, columns])
    yield "index_beside", (aten.index.Tensor, x, [rows, columns])
    yield "index_apart", (aten.index.Tensor, x, [rows, None, m.index(row, 3)])
    yield "index_put", (aten.index_put.default, x, [None, columns], m.real(n, 3, row))
    yield "index_put_row", (aten.index_put.default, x, [None, columns], m.real(row), True)
    yield "index_put_apart", (aten.index_put.default, x, [last % n, None, last], m.real(4, 1, c), True)

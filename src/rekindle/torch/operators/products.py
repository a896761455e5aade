"""Matrix products, fused attention and fused recurrent layers, forward and backward: one record each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry

from .corrected import in_grad_mode, in_place
from .cut_call import SUM, Call, Dim, Draft, Rule, Slicing, aligned
from .record import Given, Operator, Valid, always

aten = torch.ops.aten
_ROWS = 8  # matrix products of fewer rows take another kernel, and each kernel takes some rows at a time


# -- matrix products ---------------------------------------------------------------------------------------------------
def _product(left: str, right: str, added: str | None = None) -> Rule:
    """Of [n, k] and [k, m], both with a batch in front or none, and a tensor that is added to the product: by batch, by rows,
    by columns, and along the contraction (a sum, where nothing is added)."""

    def rule(call: Call) -> Iterator[Draft]:
        whole = call.out()
        row, column = len(whole) - 2, len(whole) - 1

        def beside(d: int) -> dict[str, Dim]:
            return {} if added is None else {added: aligned(call.shape(added), whole, d)}

        if row > 0:
            yield Draft({left: 0, right: 0, **beside(0)}, (0,))
        yield Draft({left: row, **beside(row)}, (row,))
        yield Draft({right: column, **beside(column)}, (column,))
        if added is None:
            yield Draft({left: column, right: row}, (SUM,))

    return rule


def _by_rows(left: str) -> Callable[[Slicing], bool]:
    """By rows, as many as kernels take at a time, and by batch."""

    def rule(q: Slicing) -> bool:
        d, rank = q.ins[left, 0], len(q.call.shape(left))
        return d is not None and (d == rank - 3 or (d == rank - 2 and q.begins_at_multiples(_ROWS)))

    return rule


def _matrix_vector(call: Call) -> Iterator[Draft]:
    yield Draft({"self": 0}, (0,))
    yield Draft({"self": 1, "vec": 0}, (SUM,))


def _dot(call: Call) -> Iterator[Draft]:
    yield Draft({"self": 0, "tensor": 0}, (SUM,))


# -- attention ---------------------------------------------------------------------------------------------------------
def _attention(call: Call) -> Iterator[Draft]:
    """By batch, and by heads where each query head has a key and value head of its own; not with dropout, which draws random
    numbers, nor with quantised inputs.

    Masks and biases may repeat one row. The seeds that kernels return are the same for all slices.
    """
    if call["dropout_p"] or call.values.get("return_debug_mask") or "q_descale" in call.values:
        return
    query = call.shape("query")
    heads = {call.shape(name)[1] for name in ("query", "key", "value")}
    whole = (*query[:3], call.shape("key")[2])
    for d in (0, 1) if len(heads) == 1 else (0,):
        ins: dict[str, Dim] = {name: d for name, _, shape in call.tensors if len(shape) > 2}
        ins |= {name: aligned(call.shape(name), whole, d) for name in ("attn_mask", "attn_bias")}
        outs: list[int | str | None] = [d if len(call.out(i)) > 2 else None for i in range(len(call.results))]
        if call.values.get("grad_input_mask") and ins["attn_bias"] is None:
            outs[3] = SUM  # the gradient of a bias that slices share
        yield Draft(ins, tuple(outs))


def _with_equal_heads(op: Any, query: int) -> Callable[[Sequence[Any], Mapping[str, Any], Any], int]:
    """FLOPs by torch's formula for the op, of key and value as shapes that have as many heads as the query.

    Tensors are [batch, heads, length, size]. Grouped heads are read once for each head of the query. Torch 2.11 has no formula
    for them; later releases count the same. query : position of the query among the arguments; key and value follow.
    """

    def count(args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
        formula, heads = flop_registry.get(op), args[query].shape[1]
        key, value = ([x.shape[0], heads, *x.shape[2:]] for x in args[query + 1 : query + 3])
        given = [*args[: query + 1], key, value, *args[query + 3 :]]
        return 0 if formula is None else int(formula(*given, **kwargs, out_val=out))

    return count


def _results_on_the_cpu(x: Given) -> Valid:
    """The results of the forward op."""
    options = {k: x[k] for k in ("dropout_p", "is_causal", "attn_mask", "scale")}
    made = aten._scaled_dot_product_flash_attention_for_cpu(x["query"], x["key"], x["value"], **options)
    return {(name, 0): t for name, t in zip(("out", "logsumexp"), made, strict=False) if isinstance(t, torch.Tensor)}


_SEEDS = ("philox_seed", "philox_offset")


def _seeds_on_host(x: Given) -> Valid:
    return {(k, 0): torch.zeros(x[k].shape, dtype=x[k].dtype) for k in _SEEDS}


_ATTENTION = Operator(_attention, same_bits=always)
_FORWARD, _BACKWARD = 0, 1  # positions of the query

OPERATORS = {
    "mm": Operator(_product("self", "mat2"), same_bits=_by_rows("self")),
    "addmm": Operator(_product("mat1", "mat2", added="self"), same_bits=_by_rows("mat1"), over=in_place("addmm")),
    "addmm_": Operator(flops_as=aten.addmm),
    "bmm": Operator(_product("self", "mat2"), same_bits=_by_rows("self")),
    "baddbmm": Operator(_product("batch1", "batch2", added="self"), same_bits=_by_rows("batch1")),
    "mv": Operator(_matrix_vector),
    "dot": Operator(_dot),
    # the CPU's fused attention computes the same as GPUs' flash kernels
    "_scaled_dot_product_flash_attention_for_cpu": replace(
        _ATTENTION, flops_as=aten._scaled_dot_product_flash_attention
    ),
    "_scaled_dot_product_flash_attention_for_cpu_backward": replace(
        _ATTENTION, flops_as=aten._scaled_dot_product_flash_attention_backward, sample=_results_on_the_cpu
    ),
    "_scaled_dot_product_efficient_attention_backward": replace(
        _ATTENTION,
        flops=_with_equal_heads(aten._scaled_dot_product_efficient_attention_backward, _BACKWARD),
        on_host=_SEEDS,
        sample=_seeds_on_host,
    ),
    "mkldnn_rnn_layer": Operator(run=in_grad_mode),
    "_efficient_attention_backward": Operator(on_host=_SEEDS, sample=_seeds_on_host),
    **{
        name: replace(_ATTENTION, flops=_with_equal_heads(getattr(aten, name), query))
        for name, query in (
            ("_scaled_dot_product_flash_attention", _FORWARD),
            ("_scaled_dot_product_flash_attention_backward", _BACKWARD),
            ("_scaled_dot_product_cudnn_attention", _FORWARD),
            ("_scaled_dot_product_cudnn_attention_backward", _BACKWARD),
            ("_scaled_dot_product_efficient_attention", _FORWARD),
        )
    },
}

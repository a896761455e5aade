"""Cuts of convolutions, matrix products and attention, forward and backward."""

from __future__ import annotations

from collections.abc import Iterator

from .cut_call import SUM, Call, Dim, Draft, Rule, aligned


def _convolution(call: Call) -> Iterator[Draft]:
    """By batch, output channel, input channel (a sum, where no bias is added), and groups.

    The weight is [out, in / groups, …], or [in, out / groups, …] of a transposed one.
    """
    if len(call.shape("input")) != len(call.shape("weight")):
        return  # one example without a batch
    yield Draft({"input": 0}, (0,))
    out, inside = (1, 0) if call["transposed"] else (0, 1)
    if call["groups"] > 1:
        yield Draft({"input": 1, "weight": 0, "bias": 0}, (1,), most=call["groups"])
        return
    yield Draft({"weight": out, "bias": 0}, (1,))
    if call["bias"] is None:
        yield Draft({"input": 1, "weight": inside}, (SUM,))


def _convolution_backward(call: Call) -> Iterator[Draft]:
    """Results: gradients of input, weight and bias. By input channel without the bias's, which each slice would make whole."""
    if len(call.shape("input")) != len(call.shape("weight")):
        return
    yield Draft({"grad_output": 0, "input": 0}, (0, SUM, SUM))
    out, inside = (1, 0) if call["transposed"] else (0, 1)
    if call["groups"] > 1:
        yield Draft({"grad_output": 1, "input": 1, "weight": 0}, (1, 0, 0), most=call["groups"])
        return
    yield Draft({"grad_output": 1, "weight": out}, (SUM, out, 0))
    if not call["output_mask"][2]:
        yield Draft({"input": 1, "weight": inside}, (1, inside, None))


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


def _matrix_vector(call: Call) -> Iterator[Draft]:
    yield Draft({"self": 0}, (0,))
    yield Draft({"self": 1, "vec": 0}, (SUM,))


def _dot(call: Call) -> Iterator[Draft]:
    yield Draft({"self": 0, "tensor": 0}, (SUM,))


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


_KERNELS = ("flash_attention_for_cpu", "flash_attention", "efficient_attention", "cudnn_attention")
RULES: dict[str, Rule] = {
    "convolution": _convolution,
    "convolution_backward": _convolution_backward,
    "mm": _product("self", "mat2"),
    "addmm": _product("mat1", "mat2", added="self"),
    "bmm": _product("self", "mat2"),
    "baddbmm": _product("batch1", "batch2", added="self"),
    "mv": _matrix_vector,
    "dot": _dot,
    **{f"_scaled_dot_product_{kernel}{phase}": _attention for kernel in _KERNELS for phase in ("", "_backward")},
}

"""Random arguments for a call of an op: laid out as its own, valid, and such that the order of sums shows."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch

import cut_cases_of_elements  # noqa: F401  its cases join the others
from cost_nodes import node
from cut_cases import CASES, Sizes, node_of
from rekindle.torch.rewrite.random_arguments import random_tensors
from test_bits_of_slices import case

aten: Any = torch.ops.aten


@pytest.mark.parametrize("name", CASES)
def test_random_arguments_are_laid_out_as_the_ops_own(name: str) -> None:
    node = case(name, Sizes(), torch.float32)
    inputs = [n.meta["val"] for n in node.all_input_nodes]
    made = random_tensors(node)
    assert [(t.shape, t.stride(), t.dtype) for t in made] == [(t.shape, t.stride(), t.dtype) for t in inputs]


def test_large_tensors_repeat_random_numbers_at_no_round_distance() -> None:
    node, _ = node_of(aten.relu.default, (torch.zeros(3, 2**20),), {})
    (x,) = random_tensors(node)
    assert len({*x[:, 0].tolist()}) == 3
    assert math.isclose(float(x.std()), 1, abs_tol=0.01)


def test_pools_get_indices_that_their_forward_gives() -> None:
    node = case("max_pool2d_backward", Sizes(n=2, c=3, side=6), torch.float32)
    *_, indices = random_tensors(node)
    assert len(indices.unique()) > 10
    windows = torch.arange(36).view(6, 6).unfold(0, 2, 2).unfold(1, 2, 2).flatten(2)
    assert (indices.unsqueeze(-1) == windows).any(-1).all()


def test_random_states_that_a_gpu_reads_on_the_host_are_made_there() -> None:
    q, lse = torch.empty(2, 4, 32, 16, device="meta"), torch.empty(2, 4, 32, device="meta")
    seed, offset = (torch.empty((), dtype=torch.long, device="meta") for _ in range(2))
    backward = torch.ops.aten._scaled_dot_product_efficient_attention_backward.default
    mask = torch.empty(2, 4, 32, 32, device="meta")
    made = random_tensors(node(backward, q, q, q, q, mask, q, lse, seed, offset, 0.1, [True, True, True, False]))
    assert [t.device.type for t in made] == ["meta"] * 7 + ["cpu"] * 2


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_numbers_that_cancel_show_the_order_of_sums_in_sixteen_bits(dtype: torch.dtype) -> None:
    """Of normally distributed ones, 12 of 400 rounds showed that a convolution adds up each group alone in another order."""
    product, _ = node_of(aten.mm.default, (torch.zeros(64, 96, dtype=dtype), torch.zeros(96, 64, dtype=dtype)), {})
    torch.manual_seed(0)
    differ = []
    for cancel in (False, True):
        a, b = (t.float() for t in random_tensors(product, cancel))
        halves = a[:, :48] @ b[:48] + a[:, 48:] @ b[48:]
        differ.append(((a @ b).to(dtype) != halves.to(dtype)).float().mean().item())
    usual, cancelling = differ
    assert usual < 0.01
    assert cancelling > 0.02

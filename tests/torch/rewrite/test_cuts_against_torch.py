"""The table of cuts against torch's own: the propagator of torch.distributed.tensor.

It says how sharded tensors give sharded results. A cut of one dimension is a placement on two ranks: Shard, Replicate, and
Partial for a sum.

The propagator may be stricter, and ask for other placements first: it is asked for the sake of communication, and some ops it
gives up on early. Where it accepts the placements, its results must be placed as ours.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from typing import Any

import pytest
import torch

import cut_cases_of_elements  # noqa: F401  its cases join the others
from cut_cases import CASES, Maker, Sizes, members, node_of
from marks import sweep
from rekindle.torch.rewrite.cuts import SUM, Cut, cuts_of

EVEN = Sizes(n=4, c=4, o=4, side=4, row=4, groups=2)
RELEASE = tuple(map(int, torch.__version__.split(".")[:2]))

# Ops of which it knows nothing, or of which it cannot answer.
LACKS = {
    "_adaptive_avg_pool3d_backward", "_prelu_kernel_backward", "_scaled_dot_product_flash_attention_for_cpu_backward",
    "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward", "as_strided", "avg_pool2d_backward",
    "avg_pool3d_backward", "copy", "empty", "empty_strided", "fill", "full", "hardshrink_backward", "hardsigmoid_backward",
    "hardswish_backward", "hardtanh_backward", "lift_fresh_copy", "log_sigmoid_backward",
    "max_pool3d_with_indices_backward", "ones", "softshrink_backward", "zeros",
    *(f"{kind}_pad{n}d{phase}" for kind in ("reflection", "replication") for n in (1, 2, 3) for phase in ("", "_backward")),
}  # fmt: skip

# Ops with a cut that it does not take: convolutions by channel, groups, batch norm by batch with given statistics, slices of
# all, and matrices of which a triangle is left.
STRICTER = {
    "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "convolution", "convolution_backward",
    "native_batch_norm", "native_batch_norm_backward", "native_group_norm", "slice_backward", "slice_scatter", "tril",
    "triu",
}  # fmt: skip

# Ops whose results it places otherwise: it makes tensors of one number whole on each rank, repeats a row on each rank, shards
# the empty statistics of a batch norm that was given some, and forgets that `logsumexp` keeps dimensions.
OTHERWISE = {
    "_native_batch_norm_legit_functional", "_native_batch_norm_legit_no_training", "expand", "logsumexp",
    "native_batch_norm", "new_empty", "new_empty_strided", "new_full", "new_ones", "new_zeros", "repeat",
}  # fmt: skip


class Propagator:
    """torch's propagator on two ranks that are not there."""

    def __init__(self) -> None:
        from torch.distributed.device_mesh import init_device_mesh
        from torch.distributed.tensor import DTensor
        from torch.distributed.tensor._dtensor_spec import DTensorSpec, TensorMeta
        from torch.distributed.tensor._op_schema import OpSchema

        self.mesh = init_device_mesh("cpu", (2,))
        self.propagator = DTensor._op_dispatcher.sharding_propagator
        self.infos = [self.propagator.op_to_schema_info, self.propagator.op_to_schema_info_for_single_dim_strategy]
        self.spec, self.meta, self.schema = DTensorSpec, TensorMeta, OpSchema

    def place(self, dim: int | str | None) -> tuple[Any]:
        from torch.distributed.tensor import Partial, Replicate, Shard

        return (Partial() if dim == SUM else Replicate() if dim is None else Shard(dim),)

    def ask(self, op: Any, args: Any, kwargs: Any, cut: Cut) -> tuple[list[Any], list[Any], list[Any]]:
        """(placements of the tensors that are given, that it wants, of the results)."""
        dims = iter(cut.ins)

        def lift(x: Any) -> Any:
            if isinstance(x, list) and any(isinstance(y, torch.Tensor) for y in x):
                return tuple(map(lift, x))
            if not isinstance(x, torch.Tensor):
                return x
            return self.spec(self.mesh, self.place(next(dims)), self.meta(x.shape, x.stride(), x.dtype))

        info = next((i for known in self.infos if (i := known.get(op)) is not None), None)
        given = self.schema(op, tuple(map(lift, args)), {k: lift(v) for k, v in kwargs.items()}, schema_info=info)
        answer = self.propagator.propagate_op_sharding_non_cached(given)
        wanted = answer.redistribute_schema or given
        return (
            self.placements(given.args_schema),
            self.placements(wanted.args_schema),
            self.placements(answer.output_spec),
        )

    def placements(self, specs: Any) -> list[Any]:
        if isinstance(specs, tuple | list):
            return [p for s in specs for p in self.placements(s)]
        return [specs.placements] if isinstance(specs, self.spec) else []


@pytest.fixture(scope="module")
def propagator() -> Iterator[Propagator]:
    if RELEASE < (2, 13):
        pytest.skip("the propagator of older releases knows fewer ops")
    try:
        from torch.testing._internal.distributed.fake_pg import FakeStore
    except ImportError:
        pytest.skip("no process group without processes")
    torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=2)
    try:
        try:
            found = Propagator()
        except (ImportError, AttributeError) as e:
            pytest.skip(f"torch has moved its propagator: {e}")
        yield found
    finally:
        torch.distributed.destroy_process_group()


@sweep
def test_torch_places_results_as_the_table_does(propagator: Propagator) -> None:
    found = defaultdict(set)
    for make in CASES.values():
        op, args, kwargs = make(Maker(EVEN))
        if op.namespace != "aten":
            continue  # of this package: torch knows nothing of it
        node, _ = node_of(op, args, kwargs)
        name = op._schema.name.removeprefix("aten::")
        for cut in (c for c in cuts_of(node) if c.units % 2 == 0):
            try:
                given, wanted, outs = propagator.ask(op, args, kwargs, cut)
            except (NotImplementedError, RuntimeError, ValueError):
                found["unknown"].add(name)
                continue
            results = zip(members(node.meta["val"]), cut.outs, strict=True)
            ours = [propagator.place(d) for t, d in results if isinstance(t, torch.Tensor)]
            found["stricter" if given != wanted else "otherwise" if outs != ours else "agreed"].add(name)
    assert found["unknown"] - found["agreed"] <= LACKS
    assert found["stricter"] <= STRICTER
    assert found["otherwise"] <= OTHERWISE
    assert len(found["agreed"]) > 100

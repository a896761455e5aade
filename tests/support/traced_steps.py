"""A step of blocks as tracing describes it, with modules, operators, shapes and source lines; made without torch."""

from __future__ import annotations

from rekindle.model.graph import ACCUMULATE, BOUNDARY, OPERATOR, Graph, Op, Value
from rekindle.model.op_names import traced_name

PAGE = 4096
PER_BLOCK = (("fc1", "addmm", 4), ("act", "gelu", 4), ("fc2", "addmm", 1))  # module, operator, pages of its result


def blocks(count: int, resident: int = 20 * PAGE, name: str = "Net", model: str = "layers") -> Graph:
    """Forward and backward of `count` equal blocks of three ops each: 7 * count + 1 ops. model : path of the blocks."""
    values = [Value(PAGE)]
    ops: list[Op] = []

    def add(module: str, operator: str, inputs: list[int], pages: int, backward: bool, line: int) -> int:
        values.append(Value(pages * PAGE))
        target, shape = f"aten.{operator}.default", f"f32[{pages},1024]"
        ops.append(Op(
            traced_name(OPERATOR, module, target, shape), tuple(inputs), (len(values) - 1,), seconds=pages * 1e-5,
            flops=pages * 100, workspace=PAGE if operator == "addmm" else 0, backward=backward, module=module, kind=OPERATOR,
            target=target, shape=shape, source=f"models/net.py:{line}",
        ))  # fmt: skip
        return len(values) - 1

    made = [0]
    for b in range(count):
        for k, (leaf, operator, pages) in enumerate(PER_BLOCK):
            made.append(add(f"{model}.{b}.{leaf}", operator, [made[-1]], pages, False, 10 + k))
    values.append(Value(PAGE))
    ops.append(Op(BOUNDARY, (made[-1],), (len(values) - 1,), recompute=False, kind=BOUNDARY))
    gradient = len(values) - 1
    keep = []
    for i in range(len(made) - 1, 0, -1):
        b, k = divmod(i - 1, len(PER_BLOCK))
        leaf, operator, pages = PER_BLOCK[k]
        before = PER_BLOCK[k - 1][2] if k else 1
        gradient = add(f"{model}.{b}.{leaf}", f"{operator}_backward", [gradient, made[i - 1]], before, True, 10 + k)
        if leaf == "fc1":
            values.append(Value(0))
            keep.append(len(values) - 1)
            path = f"{model}.{b}.fc1.weight"
            ops.append(Op(
                traced_name(ACCUMULATE, path), (gradient,), (keep[-1],), recompute=False, backward=True, module=path,
                kind=ACCUMULATE,
            ))  # fmt: skip
    return Graph(tuple(values), tuple(ops), (*keep, gradient), resident, name)

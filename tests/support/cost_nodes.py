"""One call of an operator as a graph node, and the nodes of a small joint graph."""

import contextlib

import torch
from torch import fx
from torch._functorch.aot_autograd import aot_export_joint_with_descriptors
from torch._subclasses import FakeTensorMode
from torch.utils._pytree import tree_map_only

from rekindle.torch.costs.cache import Measurement

aten = torch.ops.aten


def node(op, *args, **kwargs):
    """One call of `op` as a graph node. Tensors among the arguments become placeholders with fake metas; the result's
    meta is what the operator gives on them."""
    graph, metas = fx.Graph(), {}
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:

        def placeholder(t):
            if id(t) not in metas:
                metas[id(t)] = graph.placeholder(f"x{len(metas)}")
                metas[id(t)].meta["val"] = mode.from_tensor(t)
            return metas[id(t)]

        call = graph.call_function(op, tree_map_only(torch.Tensor, placeholder, args), kwargs)
        values = fx.node.map_arg((call.args, call.kwargs), lambda n: n.meta["val"])
        call.meta["val"] = op(*values[0], **values[1])
    return call


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(3, 8, 3, padding=1), torch.nn.BatchNorm2d(8)
        self.head = torch.nn.Linear(8, 5)

    def forward(self, x):
        h = torch.nn.functional.dropout(self.norm(self.conv(x)).relu(), 0.5)
        return self.head(h.mean((2, 3)))


def one(seconds, workspace):
    return Measurement(seconds, 0.5, workspace, 1.0, 8)


def joint_nodes():
    with contextlib.ExitStack() as stack:
        joint = aot_export_joint_with_descriptors(stack, Net(), (torch.rand(4, 3, 16, 16),))
    return [n for n in joint.graph_module.graph.nodes if n.op == "call_function"]

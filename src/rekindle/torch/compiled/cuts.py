"""Cuts the graph of a forward where its repeated blocks begin and end.

Code between two blocks belongs to the block before it, unless it uses weights: then it is a stage of its own.
"""

from __future__ import annotations

import inspect
import math
import operator
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import fx, nn

from ..tensors.op_tensors import written_by
from .compiler import is_operator
from .saving import mark_block

_IN_PLACE = {getattr(operator, k) for k in dir(operator) if k.startswith("i") and hasattr(operator, f"__{k}__")}
_IN_PLACE.add(operator.setitem)
_DRAWS = re.compile("dropout|rand|bernoulli|multinomial|poisson|exponential|normal_?$")
_SELF, _NAME = re.compile(r"^L\['[^']*'\]\.?"), re.compile(r"\[(?:'([^']*)'|\"([^\"]*)\"|(\d+))\]")


class Cuts:
    """Where the graph of a forward is cut. paths : of the stages, in their order."""

    def __init__(self, model: nn.Module, graph: fx.GraphModule):
        nodes = [n for n in graph.graph.nodes if n.op not in ("placeholder", "get_attr", "output")]
        self._blocks = _blocks(model) or _called_again(nodes) or _segments(model)
        runs = self._runs(nodes)
        self.paths = _named([block for block, _ in runs])
        self._stages = [inside for _, inside in runs]
        self._number()

    def _number(self) -> None:
        self._of = {node: number for number, inside in enumerate(self._stages) for node in inside}

    def join(self, kinds: Sequence[str], most: int) -> None:
        """Join neighbours that no other stage equals, the smallest first, until there are few enough kinds.

        kinds : of the stages. most : different kinds, each of which takes seconds to compile.
        """
        count = Counter(kinds)
        alone = [count[k] == 1 for k in kinds]
        left = len(count)
        while left > most:
            pairs = [i for i in range(len(alone) - 1) if alone[i] and alone[i + 1]]
            if not pairs:
                break
            i = min(pairs, key=lambda i: len(self._stages[i]) + len(self._stages[i + 1]))
            self._stages[i] = self._stages[i] + self._stages.pop(i + 1)
            last = self.paths.pop(i + 1)
            self.paths[i] = f"{self.paths[i].partition(' to ')[0]} to {last.rpartition(' to ')[2]}"
            del alone[i + 1]
            left -= 1
        self._number()

    def join_all(self, path: str) -> None:
        """Join all stages. Nodes of blocks know the number of their stage still, so that a block can run again."""
        for number, inside in enumerate(self._stages):
            for node in inside:
                if self._block(node) is not None:
                    mark_block(node, number)
        self._stages, self.paths = [[n for inside in self._stages for n in inside]], [path]
        self._number()

    def number(self, node: fx.Node) -> int:
        """The stage of a node."""
        return self._of[node]

    def inner_results(self, graph: fx.GraphModule) -> list[int]:
        """Numbers of the graph's results from which their own stages go on."""
        results: Any = graph.graph.output_node().args[0]
        made = [(i, n) for i, n in enumerate(results) if n in self._of]
        return [i for i, n in made if any(self._of.get(u) == self._of[n] for u in n.users)]

    def _runs(self, nodes: Sequence[fx.Node]) -> list[tuple[str, list[fx.Node]]]:
        """(path of a block, or "" between blocks; nodes) of each stage."""
        runs: list[tuple[Any, list[fx.Node]]] = []
        for node in nodes:
            call = self._block(node)
            if not runs or runs[-1][0] != call:
                runs.append((call, []))
            runs[-1][1].append(node)
        joined: list[tuple[Any, list[fx.Node]]] = []
        for i, (call, inside) in enumerate(runs):
            is_between = 0 < i < len(runs) - 1 and call is None
            if joined and (is_between and not _uses_weights(inside) or joined[-1][0] == call):
                joined[-1][1].extend(inside)
            else:
                joined.append((call, inside))
        return [("" if call is None else call[0], inside) for call, inside in _whole_results(joined)]

    def _block(self, node: fx.Node) -> tuple[str, str] | None:
        """(path, key of the call) of the block in which the node lies."""
        for path, key in _modules(node):
            if (block := self._blocks.get(path)) is not None:
                return block, key if block == path else ""
        return None


def _named(blocks: Sequence[str]) -> list[str]:
    names: list[str] = []
    for i, block in enumerate(blocks):
        following = next((b for b in blocks[i:] if b), "")
        name = block or (f"before {following}" if following else f"after {next((b for b in blocks[::-1] if b), 'all')}")
        times = sum(n == name or n.startswith(f"{name} #") for n in names)
        names.append(f"{name} #{times + 1}" if times else name)
    return names


def _modules(node: fx.Node) -> Iterator[tuple[str, str]]:
    """(path, key of the call) of the modules in which the node lies, from the outermost on."""
    for key, (path, _) in (node.meta.get("nn_module_stack") or {}).items():
        path = _NAME.sub(lambda m: f".{m[1] or m[2] or m[3]}", _SELF.sub("", path)).lstrip(".")
        yield path.replace("._modules.", ".").removeprefix("_modules."), key


def _blocks(model: nn.Module) -> dict[str, str]:
    """path -> the block to which the module belongs: the repeated blocks."""
    found = {id(b) for b in find_blocks(model)}
    return {name: name for name, m in model.named_modules() if id(m) in found}


def _called_again(nodes: Sequence[fx.Node]) -> dict[str, str]:
    """As `_blocks`: the outermost modules that are called several times, such as the one layer of an ALBERT."""
    calls: dict[str, dict[str, None]] = {}
    for node in nodes:
        for path, key in _modules(node):
            calls.setdefault(path, {})[key] = None
    again = {path for path, keys in calls.items() if path and len(keys) > 1}
    return {p: p for p in again if not any(p.startswith(f"{q}.") for q in again)}


def _segments(model: nn.Module) -> dict[str, str]:
    """As `_blocks`: about as many runs of layers of the longest Sequential as each has layers, such as those of a VGG."""
    if (chain := chain_of_leaves(model)) is None:
        return {}
    layers = {id(m) for m in chain}
    paths = [name for name, m in model.named_modules() if id(m) in layers]
    each = math.isqrt(len(paths))
    runs = [paths[i : i + each] for i in range(0, len(paths), each)]
    return {path: run[0] if len(run) == 1 else f"{run[0]} to {run[-1]}" for run in runs for path in run}


def _uses_weights(nodes: Sequence[fx.Node]) -> bool:
    return any(isinstance(x.meta.get("example_value"), nn.Parameter) for n in nodes for x in n.all_input_nodes)


def _whole_results(runs: Sequence[tuple[Any, list[fx.Node]]]) -> Iterator[tuple[Any, list[fx.Node]]]:
    """The runs, joined where a result that is no tensor would go from one to another, where one writes to what another made or
    read, and may have saved for backward, and from where the state of the process is changed to where it is put back."""
    at = {n: i for i, (_, nodes) in enumerate(runs) for n in nodes}
    last, seen = list(range(len(runs))), dict[Any, int]()  # storage -> the run that made it, or read it first
    for n, i in at.items():
        for x in (*n.all_input_nodes, n):
            if (where := _storage(x.meta.get("example_value"))) is not None:
                seen.setdefault(where, i)
        for where in _written(n):
            first = seen.get(where, i)
            last[first] = max(last[first], i)
        if not isinstance(n.meta.get("example_value"), torch.Tensor):
            last[i] = max([last[i], *(at[u] for u in n.users if u in at)])
    if states := [i for n, i in at.items() if _changes_state(n)]:
        last[states[0]] = max(last[states[0]], states[-1])
    i = 0
    while i < len(runs):
        until, nodes, j = last[i], [*runs[i][1]], i
        while j < until:
            j += 1
            nodes += runs[j][1]
            until = max(until, last[j])
        yield runs[i][0], nodes
        i = j + 1


def _storage(t: Any) -> Any:
    return t.untyped_storage()._cdata if isinstance(t, torch.Tensor) and t.layout is torch.strided else None


def _changes_state(node: fx.Node) -> bool:
    """Whether the node may change the state of the process, such as the kernels of attention; `split_module` itself repeats
    autocast and the mode of gradients in each stage."""
    name = str(getattr(node.target, "__name__", node.target))
    known = ("_set_grad_enabled", "_enter_autocast", "_exit_autocast", "_log_api_usage_once")
    return _switches(node) and name not in known


def _switches(node: fx.Node) -> bool:
    """Whether the node computes nothing, and so may switch something for the nodes behind it."""
    name = str(getattr(node.target, "__name__", node.target))
    computes = any(isinstance(x.meta.get("example_value"), torch.Tensor) for x in (node, *node.all_input_nodes))
    return node.op == "call_function" and (not (computes or node.users) or "autocast" in name)


def is_fixed(node: fx.Node) -> bool:
    """Whether no other node may move across this one: it writes to a tensor, or switches something for the nodes behind it."""
    return bool(_written(node)) or _switches(node)


def draws(node: fx.Node) -> bool:
    """Whether the node draws random numbers, as its name tells."""
    return _DRAWS.search(str(getattr(node.target, "__name__", node.target))) is not None


def _written(node: fx.Node) -> list[Any]:
    """The storages to which the node writes."""
    args, kwargs = fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta.get("example_value"))
    found: list[Any]
    if is_operator(node.target):
        found = written_by(node.target, args, kwargs)
    else:
        name = str(getattr(node.target, "__name__", node.target))
        in_place = args and (_is_in_place(name) or node.target in _IN_PLACE or _asked_in_place(node))
        out = kwargs.get("out")
        found = [*(args[:1] if in_place else ()), *(out if isinstance(out, tuple | list) else [out])]
    return [where for t in found if (where := _storage(t)) is not None]


def _is_in_place(name: str) -> bool:
    return name.endswith("_") and not name.endswith("__")


def _asked_in_place(node: fx.Node) -> bool:
    """Whether the argument `inplace` of a function of torch.nn.functional is true."""
    if node.op != "call_function" or not str(getattr(node.target, "__module__", "")).startswith("torch"):
        return False
    try:
        given = inspect.signature(node.target).bind(*node.args, **node.kwargs)  # type: ignore[arg-type]
    except (TypeError, ValueError):  # a function of C has no signature, and no such argument
        return node.kwargs.get("inplace") is True
    return given.arguments.get("inplace") is True


def find_blocks(model: nn.Module) -> list[nn.Module]:
    """The modules around which a user would put `torch.utils.checkpoint`, in the order in which the model holds them.

    A *level* is the list of composite modules below a module, looking through containers (ModuleList, ModuleDict, their
    subclasses, and plain Sequential). The level of a ResNet holds its residual blocks of all four stages. Starting at the
    model, the search takes the first level at which some class of composite modules occurs at least twice; the repeated modules
    are the blocks: residual blocks, dense layers, a transformer's layers, cells. Two rules refine this:

    - A module that occurs once at its level, and a *stage*, is not a block; the search goes on inside it. A stage holds a
      container in which a class of modules repeats that are themselves made of composite modules (the stages of a Swin
      transformer, the two stacks of T5). An inverted residual, which holds a Sequential of convolution-and-norm units, is a
      block, and so is a layer with a list of experts.
    - Leaves are not blocks: a VGG has none. But a list of plain Sequentials of leaves, as in many a U-Net, is a list of blocks,
      and so are the plain Sequentials beside it.
    """
    return list({id(b): b for b in _repeated(model)}.values())


def chain_of_leaves(model: nn.Module) -> nn.Sequential | None:
    """The plain Sequential with most elements, such as the convolutions of a VGG; None if none has four elements."""
    chains = [m for m in model.modules() if type(m) is nn.Sequential and len(m) >= 4]
    return max(chains, key=len, default=None)


def _repeated(m: nn.Module) -> Iterator[nn.Module]:
    level = list(_level(m))
    if any(type(x) is nn.Sequential for x in level):  # the Sequentials beside the list are blocks of the same kind
        level += [x for x in m.children() if type(x) is nn.Sequential and _of_leaves(x)]
    counts = Counter(type(x) for x in level)
    for x in level:
        if counts[type(x)] > 1 and not _is_stage(x):
            yield x
        else:
            yield from _repeated(x)


def _level(m: nn.Module) -> Iterator[nn.Module]:
    """The composite modules below m, looking through containers."""
    for child in m.children():
        listed = isinstance(m, nn.ModuleList | nn.ModuleDict) and type(child) is nn.Sequential
        if listed and _of_leaves(child):
            yield child
        elif _is_container(child):
            yield from _level(child)
        elif any(True for _ in child.children()):
            yield child


def _of_leaves(m: nn.Module) -> bool:
    return not any(True for x in m.children() for _ in x.children())


def _is_container(m: nn.Module) -> bool:
    return isinstance(m, nn.ModuleList | nn.ModuleDict) or type(m) is nn.Sequential


def _is_stage(m: nn.Module) -> bool:
    for child in m.children():
        if _is_container(child):
            inside = list(_level(child))
            counts = Counter(type(x) for x in inside)
            if any(counts[type(x)] > 1 and any(True for _ in _level(x)) for x in inside):
                return True
    return False

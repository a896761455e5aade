"""The modules of a graph as a tree in which numbered siblings with equal ops are one: `transformer.h.*`.

Only ops of forward make the tree: their modules are known, and each layer has the same ones.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..model.graph import Graph

NUMBERED = re.compile(r"(.*?)(\d{1,18})", re.DOTALL)  # Python does not read numbers of thousands of digits
LEVELS_MOST = 100  # names of a path that become levels of the tree; functions here walk it by recursion


@dataclass
class Node:
    """A module, or equal numbered siblings as one.

    pattern : path from the model, folded: "transformer.h.*.attn"; "" is the model itself. count : how many modules it stands
        for. ops : of these modules themselves, in the graph's order. children : by their folded names. paths : the modules.
    """

    pattern: str
    count: int = 1
    ops: list[int] = field(default_factory=list)
    children: dict[str, Node] = field(default_factory=dict)
    paths: list[str] = field(default_factory=list)

    def all_ops(self) -> Iterator[int]:
        """The ops of the module and of everything below it."""
        yield from self.ops
        for child in self.children.values():
            yield from child.all_ops()

    def nodes(self) -> Iterator[Node]:
        """The node and all nodes below it."""
        yield self
        for child in self.children.values():
            yield from child.nodes()


def module_tree(graph: Graph, ops: Iterable[int]) -> Node:
    """The tree of the modules of these ops, folded; beyond `LEVELS_MOST` the rest of a path is one name. O(ops times depth)."""
    root = Node("", paths=[""])
    for i in ops:
        node, path = root, ""
        for name in graph.ops[i].module.split(".", LEVELS_MOST) if graph.ops[i].module else ():
            path = f"{path}.{name}" if path else name
            node = node.children.setdefault(name, Node("", paths=[path]))
        node.ops.append(i)
    _fold(graph, root, {})
    _name(root, "")
    return root


def folded_paths(root: Node) -> dict[str, str]:
    """module path -> pattern, for every module of the tree."""
    return {path: node.pattern for node in root.nodes() for path in node.paths}


def pattern_of(path: str, patterns: dict[str, str]) -> str:
    """The pattern of a path; below a known module, as a parameter is, that module's pattern and the rest as it is.

    >>> pattern_of("h.3.fc.weight", {"h.3.fc": "h.*.fc"}), pattern_of("loss", {"": ""})
    ('h.*.fc.weight', 'loss')
    """
    if path in patterns:
        return patterns[path]
    names = path.split(".", LEVELS_MOST)
    for k in range(len(names) - 1, 0, -1):
        if (known := ".".join(names[:k])) in patterns:
            return ".".join([patterns[known], *names[k:]])
    return path


def _fold(graph: Graph, node: Node, known: dict[object, int]) -> int:
    """Join equal numbered children, from below.

    known : structure of a module -> its number. Returns the number of this one: equal modules have the same.
    """
    keys = {name: _fold(graph, child, known) for name, child in node.children.items()}
    own = tuple(graph.ops[i].signature or graph.ops[i].name for i in node.ops)
    number = known.setdefault((own, tuple(keys.items())), len(known))
    stems = {name: numbered[1] for name in keys if (numbered := NUMBERED.fullmatch(name))}
    groups: dict[object, list[str]] = {}
    for name, key in keys.items():
        groups.setdefault((stems[name], key) if name in stems else name, []).append(name)
    folded: dict[str, Node] = {}
    for first, *others in groups.values():
        label = first
        if others:
            stem = stems[first]
            all_of_them = 1 + len(others) == sum(s == stem for s in stems.values())
            label = stem + ("*" if all_of_them else ranges(int(name[len(stem) :]) for name in (first, *others)))
        for name in others:
            _join(node.children[first], node.children[name])
        folded[label] = node.children[first]
    node.children = folded
    return number


def _join(node: Node, other: Node) -> None:
    """Add a module of the same structure."""
    node.count += other.count
    node.ops += other.ops
    node.paths += other.paths
    for label, child in node.children.items():
        _join(child, other.children[label])


def _name(node: Node, pattern: str) -> None:
    node.pattern = pattern
    for label, child in node.children.items():
        _name(child, f"{pattern}.{label}" if pattern else label)


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges; only the first and the last range where there are more than three.

    >>> ranges([0, 2, 3, 4, 9]), ranges([0, 2, 4, 6])
    ('0,2-4,9', '0,…,6')
    """
    found: list[list[int]] = []
    for n in sorted(set(numbers)):
        if found and n == found[-1][1] + 1:
            found[-1][1] = n
        else:
            found.append([n, n])
    words = [f"{a}" if a == b else f"{a}-{b}" for a, b in found]
    return ",".join(words if len(words) <= 3 else [words[0], "…", words[-1]])


def paths_pattern(paths: Sequence[str], every: Sequence[str]) -> str:
    """One pattern for paths that differ in one number; for other paths the first one, and how many more there are.

    every : all paths there are; a number that takes every value among them is written "*".

    >>> paths_pattern(["h.0", "h.1"], ["h.0", "h.1", "head"]), paths_pattern(["h.0", "h.1"], ["h.0", "h.1", "h.2"])
    ('h.*', 'h.0-1')
    >>> paths_pattern(["a", "b", "c"], ["a", "b", "c"])
    'a and 2 more'
    """
    distinct = list(dict.fromkeys(paths))
    if len(distinct) == 1:
        return distinct[0]
    split = [p.split(".") for p in distinct]
    length = len(split[0])
    different = [i for i in range(length) if len({s[i] for s in split if len(s) == length}) > 1]
    if all(len(s) == length for s in split) and len(different) == 1:
        at = different[0]
        numbered = [NUMBERED.fullmatch(s[at]) for s in split]
        stems = {m[1] for m in numbered if m}
        if all(numbered) and len(stems) == 1:
            stem = stems.pop()
            before, after = split[0][:at], split[0][at + 1 :]
            alike = {p for p in every if _fits(p.split("."), before, stem, after)}
            label = "*" if alike <= set(distinct) else ranges(int(m[2]) for m in numbered if m)
            return ".".join([*before, stem + label, *after])
    return f"{distinct[0]} and {len(distinct) - 1} more"


def _fits(path: list[str], before: list[str], stem: str, after: list[str]) -> bool:
    if len(path) != len(before) + 1 + len(after):
        return False
    at = len(before)
    numbered = NUMBERED.fullmatch(path[at])
    return path[:at] == before and path[at + 1 :] == after and numbered is not None and numbered[1] == stem

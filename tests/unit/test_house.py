"""The rooms of the package keep to their order: who may import whom, how long a file is, how many parameters a function has.

Every import counts, also one inside a function, and one by a name in a string; imports for the type checker alone do not.
"""

from __future__ import annotations

import ast
import re
import statistics
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TypeGuard

import pytest

import rekindle
from rekindle.planning import registry

HOME = Path(rekindle.__file__).parent
MOST_LINES, MOST_LINES_MEDIAN, MOST_PARAMETERS = 400, 150, 8

# A room may import from rows above its own. A room is a folder, or the files that the row names.
ORDER: list[dict[str, set[str]]] = [
    {"words": {"arguments", "compiling", "errors", "interrupt", "printed", "version"}},
    {"saying": set()},
    {"ask": {"ask"}},
    {"kernels": set()},
    {"model": set()},
    {"problem": {"problem", "allowance"}, "structure": set(), "exact": set()},
    {"bounds": set()},
    {"solvers": set()},
    {"portfolio": set()},
    {"planning": set()},
    {"explain": set()},
    {"parts": set(), "estimates": set()},
    {"show": set()},
    {"torch.private": set()},
    {"torch.tensors": set()},
    {"torch.operators": set()},
    {"torch.situation": set()},
    {"torch.undo": set()},
    {"torch.capture": set()},
    {"torch.lowering": set()},
    {"torch.costs": set(), "zoo": set()},
    {"torch": set()},
    {"torch.rewrite": set()},
    {"torch.offload": set()},
    {"torch.run": set()},
    {"torch.measure": set()},
    {"torch.serve": set()},
    {"torch.compiled": set()},
    {"torch.ways": set()},
    {"torch.parts": set(), "torch.estimate": set()},
    {"api": {"api", "checkpointing", "citations"}},
    {"public names": {"rekindle"}, "demo": {"demo"}, "bench": set(), "integrations": set()},
    {"report": set()},
    {"cli": set()},
    {"main": {"__main__"}},
]  # fmt: skip
RANK = {room: i for i, row in enumerate(ORDER) for room in row}
ROOM_OF_FILE = {file: room for row in ORDER for room, files in row.items() for file in files}
WITHOUT_TORCH = {room for room, rank in RANK.items() if rank <= RANK["planning"]} | {
    "explain",
    "show",
    "parts",
    "estimates",
}
COMMANDS = ("bench", "compare", "demo", "estimate", "explain", "frontier", "plan", "report", "solve", "solvers")
VERBS = ("api", "torch.trace", "torch.estimate.largest")
OPERATORS = ("torch.operators.pool_offsets",)  # parameters of a torch operator are its inputs
PLANNER_FILES = tuple(f"planning.{x}" for x in ("planner", "candidates", "carrying", "certify", "frontiers"))


@cache
def modules() -> dict[str, Path]:
    """Every module of the package, by its dotted name below `rekindle` ("" is the package itself)."""
    found = {}
    for path in sorted(HOME.rglob("*.py")):
        parts = path.relative_to(HOME).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


@cache
def tree(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text())


def room(module: str) -> str:
    parts = module.split(".")
    if parts[0] in ROOM_OF_FILE or len(parts) == 1:
        return ROOM_OF_FILE.get(parts[0] or "rekindle", parts[0])
    inner = f"torch.{parts[1]}"
    return inner if parts[0] == "torch" and inner in RANK else parts[0]


def nodes(tree: ast.AST) -> Iterator[ast.AST]:
    """Every node but those below `if TYPE_CHECKING:`."""
    if isinstance(tree, ast.If) and "TYPE_CHECKING" in ast.unparse(tree.test):
        for child in tree.orelse:
            yield from nodes(child)
        return
    yield tree
    for child in ast.iter_child_nodes(tree):
        yield from nodes(child)


def imported(module: str) -> set[str]:
    """Absolute dotted names that a module imports, as far as they can be told: modules, else what they hold."""
    package = ["rekindle", *filter(None, module.split("."))]
    if modules()[module].name != "__init__.py":
        package = package[:-1]
    found: set[str] = set()
    for node in nodes(tree(module)):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            found |= {f"{source}.{a.name}" for a in node.names}
        elif _imports_by_string(node) and isinstance(node.args[0], ast.Constant):
            found.add(_absolute(node.args[0].value, package))
    if module == "":
        found |= {_absolute(name, package) for name in rekindle._LAZY.values()}
    return found


def _imports_by_string(node: ast.AST) -> TypeGuard[ast.Call]:
    names = ("import_module", "__import__")
    return isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in names and bool(node.args)


def _absolute(name: str, package: list[str]) -> str:
    """The dotted name of a module that is named from within a package."""
    level = len(name) - len(name.lstrip("."))
    return ".".join([*package[: len(package) - level + 1], name[level:]]) if level else name


@cache
def inside(module: str) -> frozenset[str]:
    """Modules of the package that a module imports."""
    found = set()
    for name in imported(module):
        if name.partition(".")[0] == "rekindle":
            own = name.partition(".")[2]
            found.add(own if own in modules() else own.rpartition(".")[0])
    return frozenset(found - {module})


def no_circle(graph: dict[str, set[str]]) -> None:
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as e:
        pytest.fail(f"a circle: {' imports '.join(reversed(e.args[1]))}")


def test_every_room_has_a_place_in_the_order() -> None:
    assert {room(m) for m in modules()} <= set(RANK)


def test_no_circle_among_files() -> None:
    no_circle({m: set(inside(m)) for m in modules()})


def test_no_circle_among_rooms() -> None:
    rooms: dict[str, set[str]] = {}
    for m in modules():
        rooms.setdefault(room(m), set()).update(room(t) for t in inside(m) if room(t) != room(m))
    no_circle(rooms)


def test_rooms_import_only_from_rooms_before_them() -> None:
    wrong = [
        f"{m} imports {t}" for m in modules() for t in sorted(inside(m))
        if room(t) != room(m) and RANK[room(t)] >= RANK[room(m)]
    ]  # fmt: skip
    assert not wrong


# Modules that import by a computed name: the public names (counted above), the solvers, the models, other libraries.
COMPUTED_NAMES = {"", "planning.registry", "zoo", "zoo.vision", "integrations.lightning"}


def test_no_room_is_imported_by_a_computed_name() -> None:
    computed = {
        m
        for m in modules()
        for n in ast.walk(tree(m))
        if _imports_by_string(n) and not isinstance(n.args[0], ast.Constant)
    }
    assert computed == COMPUTED_NAMES


def test_one_file_adds_resident_bytes_to_activations() -> None:
    """`torch.trace` adds bytes of gradients to resident ones, which then hold both."""
    found = {
        m
        for m in modules()
        for n in ast.walk(tree(m))
        if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Add | ast.Sub)
        if any(isinstance(x, ast.Attribute) and x.attr == "resident_bytes" for x in (n.left, n.right))
    }
    assert found == {"model.resident", "torch.trace"}


def test_solvers_import_no_portfolio_and_bounds_no_solver() -> None:
    pairs = [(room(m), room(t)) for m in modules() for t in inside(m)]
    assert ("solvers", "portfolio") not in pairs
    assert not {("bounds", "solvers"), ("bounds", "portfolio"), ("bounds", "planning")} & set(pairs)


def test_the_core_imports_no_torch() -> None:
    wrong = [
        f"{m} imports {name}" for m in modules() if room(m) in WITHOUT_TORCH for name in sorted(imported(m))
        if name.split(".")[0] == "torch" or name.startswith("rekindle.torch")
    ]  # fmt: skip
    assert not wrong


@pytest.mark.parametrize("module", PLANNER_FILES)
def test_the_planner_knows_no_solver_by_name(module: str) -> None:
    assert not {room(t) for t in inside(module)} & {"solvers", "portfolio"}
    names = {s.name for s in registry.all_solvers()}
    texts = {n.value for n in ast.walk(tree(module)) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    assert not names & texts


def test_no_file_is_too_long() -> None:
    lines = {m: len(path.read_text().splitlines()) for m, path in modules().items()}
    assert not {m: n for m, n in lines.items() if n > MOST_LINES}
    assert statistics.median(lines.values()) <= MOST_LINES_MEDIAN


def test_no_function_has_too_many_parameters() -> None:
    """Kernels, operators and public verbs, in Python and on the command line, may have more."""
    wrong = []
    for m in modules():
        if room(m) == "kernels" or m in OPERATORS:
            continue
        for f in ast.walk(tree(m)):
            if not isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            a = f.args
            names = [x.arg for x in (*a.posonlyargs, *a.args, *a.kwonlyargs, a.vararg, a.kwarg) if x is not None]
            is_verb = m in VERBS and f.name in rekindle.__all__ or room(m) == "cli" and f.name in COMMANDS
            if len([x for x in names if x not in ("self", "cls")]) > MOST_PARAMETERS and not is_verb:
                wrong.append(f"{m}.{f.name}: {len(names)}")
    assert not wrong


def test_a_docstring_opens_every_file_and_begins_with_no_pronoun() -> None:
    """The first line is read alone, in lists of modules and in editors."""
    first = {
        m: (ast.get_docstring(tree(m)) or "").partition("\n")[0] for m in modules() if m.split(".")[-1] != "__init__"
    }
    assert not [m for m, line in first.items() if not line and modules()[m].name != "__init__.py"]
    assert not {m: line for m, line in first.items() if re.match(r"(What|It|They|Those|These)\b", line)}


# private attributes of Lightning's objects; its real component runs in tests/torch/test_lightning.py
LIGHTNINGS = {"integrations.lightning": {"_data_source", "_on_before_batch_transfer"}}
PRIVATE = "torch.private"  # the list of private names of torch, and of private attributes of its objects
COMPILERS = "torch.compiled.compiler"  # the list of private names of torch.compile


def test_private_names_of_torch_stand_in_one_file() -> None:
    """A new release of torch may then break one file, and one of torch.compile another."""
    found = {
        m: names
        for m in modules()
        if m not in (PRIVATE, COMPILERS) and (names := sorted(_private_torch_names(tree(m))))
    }
    assert not found
    assert _private_torch_names(tree(PRIVATE))


def test_private_attributes_of_torchs_objects_stand_in_one_list() -> None:
    """Attributes that begin with an underscore, and that neither this package nor Python defines, are torch's."""
    table = next(ast.literal_eval(n.value) for n in tree(PRIVATE).body
                 if isinstance(n, ast.AnnAssign) and n.value is not None and ast.unparse(n.target) == "ATTRIBUTES")  # fmt: skip
    listed = {name for names in table.values() for name in names}
    own = {name for m in modules() for name in _defined(tree(m))} | PYTHONS
    wrong: dict[str, set[str]] = {}
    for m in modules():
        for n in ast.walk(tree(m)):
            known = not isinstance(n, ast.Attribute) or n.attr in own | listed or re.match(r"_[A-Za-z]", n.attr) is None
            if not known and m != PRIVATE and not re.match(r"(aten|torch\.ops)\.", ast.unparse(n)):
                wrong.setdefault(m, set()).add(n.attr)
    assert wrong == LIGHTNINGS


# private names of Python's own modules, and of NumPy, numba and typer
PYTHONS = {"_exit", "_getframe", "_getvalue", "_inst", "_run_exitfuncs"}


def _defined(module: ast.Module) -> Iterator[str]:
    """Names of functions, classes, variables and attributes that a module defines."""
    for n in ast.walk(module):
        if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield n.name
        elif (
            isinstance(n, ast.Attribute)
            and isinstance(n.ctx, ast.Store)
            and ast.unparse(n.value) in ("self", "cls", "twin")
        ):
            yield n.attr
        elif isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store):
            yield n.id


def _private_torch_names(module: ast.Module) -> set[str]:
    """Dotted names that start at torch and have a part with one leading underscore, in imports and in expressions."""
    names = set()
    for n in ast.walk(module):
        if isinstance(n, ast.ImportFrom) and not n.level:
            names |= {f"{n.module}.{x.name}" for x in n.names}
        elif isinstance(n, ast.Import):
            names |= {x.name for x in n.names}
        elif isinstance(n, ast.Attribute):
            names.add(ast.unparse(n))
    return {
        x
        for x in names
        if (re.match(r"torch\.([\w.]+\.)?_[A-Za-z]\w*$", x) or re.match(r"torch\.[\w.]*\b_[A-Za-z]\w*\.", x))
        and not x.startswith("torch.ops.")  # operators: `tests/torch/test_private_names.py` looks for each
    }

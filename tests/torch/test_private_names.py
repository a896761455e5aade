"""Every name of torch's private surface that the package and the comparators of the benchmark use, one test each: they say what
a new release took away.

The names are read from the source, so that the tests run where the package can no longer be imported.
"""

from __future__ import annotations

import ast
import functools
import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import rekindle

HOME = Path(rekindle.__file__).parent
COMPARATORS = Path(__file__).parents[2] / "benchmarks" / "comparators"
PRIVATE = ast.parse((HOME / "torch/private.py").read_text())
OF_COMPARATORS = ast.parse((COMPARATORS / "private.py").read_text())


def imported() -> list[str]:
    """Dotted names that the two files of private names import from torch."""
    found: set[str] = set()
    for n in (*ast.walk(PRIVATE), *ast.walk(OF_COMPARATORS)):
        if isinstance(n, ast.ImportFrom) and (n.module or "").startswith("torch"):
            found |= {f"{n.module}.{x.name}" for x in n.names}
        elif isinstance(n, ast.Import):
            found |= {x.name for x in n.names if x.name.startswith("torch")}
    return sorted(found)


def dotted(tree: ast.AST, begin: str) -> set[str]:
    """The longest dotted names that begin so, in expressions."""
    inner = {id(n.value) for n in ast.walk(tree) if isinstance(n, ast.Attribute)}
    names = {ast.unparse(n) for n in ast.walk(tree) if isinstance(n, ast.Attribute) and id(n) not in inner}
    return {x for x in names if x.startswith(begin) and x.replace(".", "").isidentifier()}


def named() -> list[str]:
    return sorted(dotted(PRIVATE, "torch."))


def operators() -> list[str]:
    """ATen operators that the code names."""
    found: set[str] = set()
    for path in (*HOME.rglob("*.py"), *COMPARATORS.glob("*.py")):
        tree = ast.parse(path.read_text())
        found |= {f"torch.ops.{x}" for x in dotted(tree, "aten.")} | dotted(tree, "torch.ops.aten.")
    return sorted(x for x in found if x.count(".") > 2)


def find(name: str) -> Any:
    """The object of this dotted name; modules on the way are imported."""
    first, *rest = name.split(".")
    found, module = importlib.import_module(first), first
    for part in rest:
        module = f"{module}.{part}"
        try:
            found = getattr(found, part)
        except AttributeError:
            found = importlib.import_module(module)
    return found


@pytest.mark.parametrize("name", imported() + named())
def test_torch_has_the_name(name: str) -> None:
    find(name)


def test_the_names_were_found() -> None:
    """The readers above see something: names of each kind that are sure to stay in use."""
    assert "torch._subclasses.fake_tensor.FakeTensorMode" in imported()
    assert "torch.fx._lazy_graph_module._make_graph_module" in imported()
    assert "torch._C._current_graph_task_id" in named()
    assert "torch.ops.aten._to_copy.default" in operators()


@pytest.mark.parametrize("name", operators())
def test_torch_has_the_operator(name: str) -> None:
    find(name)


def attributes() -> list[tuple[str, str]]:
    """(kind of object, attribute), from the table in the file of private names."""
    for n in PRIVATE.body:
        if isinstance(n, ast.AnnAssign) and ast.unparse(n.target) == "ATTRIBUTES" and n.value is not None:
            return [(kind, name) for kind, names in ast.literal_eval(n.value).items() for name in names]
    raise AssertionError("no table ATTRIBUTES")


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: torch.Tensor) -> torch.Tensor:
        return 2 * g


@functools.cache
def objects() -> dict[str, Callable[[], Any]]:
    """kind of object -> a function that makes one."""
    return {
        "an operator": lambda: torch.ops.aten.add.Tensor,
        "a storage": lambda: torch.ones(1).untyped_storage(),
        "a tensor": lambda: torch.ones(1, requires_grad=True),
        "an autograd function": lambda: Twice,
        "a node of an autograd function": lambda: Twice.apply(torch.ones(1, requires_grad=True)).grad_fn,
        "a module": lambda: nn.Linear(1, 1),
        "a fake mode": torch._subclasses.FakeTensorMode,
        "a scripted module": lambda: torch.jit.script(nn.Linear(1, 1)),
        "torch": lambda: torch,
        "a library": lambda: torch.library.Library("rekindle_of_tests", "FRAGMENT"),
    }


@pytest.mark.parametrize(("kind", "name"), attributes())
def test_objects_of_torch_have_the_attribute(kind: str, name: str) -> None:
    assert hasattr(objects()[kind](), name)


def test_nodes_of_compiled_graphs_have_the_attributes() -> None:
    """Those that `torch/compiled/compiler.py` reads."""
    from rekindle.torch.compiled.compiler import is_compiled

    x = torch.ones(2, requires_grad=True)
    node: Any = torch.compile(lambda t: t.sin().cos(), fullgraph=True)(x).grad_fn
    assert is_compiled(node)
    assert not is_compiled(x.sin().grad_fn)
    assert isinstance(node._forward_cls.metadata.bw_donated_idxs, list)
    assert isinstance(node._tensors_no_vc_check, list | tuple)

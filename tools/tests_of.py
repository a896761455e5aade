"""Prints the test files that belong to a file of the package: those that import it, or else those that import what imports it.

python tools/tests_of.py src/rekindle/torch/serve/planned.py

`make test-for FILE=…` runs them.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path

HOME = Path(__file__).parents[1]
PACKAGE = HOME / "src" / "rekindle"


def module_of(path: Path) -> str:
    """The dotted name of a file of the package."""
    parts = path.relative_to(PACKAGE.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path, modules: set[str]) -> set[str]:
    """The modules of the package that a file imports, inside functions too."""
    package = module_of(path).split(".") if PACKAGE in path.parents else []
    if path.name != "__init__.py":
        package = package[:-1]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            found |= {a.name for a in node.names}
        elif isinstance(node, ast.ImportFrom):
            above = package[: len(package) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            found |= {source, *(f"{source}.{a.name}" for a in node.names)}
    return found & modules


def tests_of(file: Path) -> list[Path]:
    """The test files of one file of the package, the nearest ones alone."""
    files = {module_of(p): p for p in PACKAGE.rglob("*.py")}
    tests = sorted((HOME / "tests").rglob("test_*.py"))
    of_test = {t: imports(t, {*files}) for t in tests}
    users: dict[str, set[str]] = {}
    for m, path in files.items():
        for x in imports(path, {*files}):
            users.setdefault(x, set()).add(m)
    near, seen = {module_of(file)}, set[str]()
    while near:
        if found := [t for t in tests if of_test[t] & near]:
            return found
        seen |= near
        near = {u for m in near for u in users.get(m, ())} - seen
    return []


def main() -> None:
    file = Path(sys.argv[1] if len(sys.argv) > 1 else "").resolve()
    if PACKAGE not in file.parents or file.suffix != ".py" or not file.is_file():
        sys.exit(f"give a Python file below {PACKAGE}, such as src/rekindle/torch/serve/planned.py; not {file}")
    if not (found := tests_of(file)):
        sys.exit(f"no test imports {file}, nor what imports it: run `make test`")
    print(*(t.relative_to(HOME) for t in found), sep="\n")


if __name__ == "__main__":
    main()

"""Makes one page for each solver and an index, from the registry and the docstrings of their files, and a page of examples.

Run by `make docs`; writes docs/solvers/ and docs/examples.md, which are not committed.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

from rekindle import registry
from rekindle.problem import Solver

FOLDER = Path(__file__).parent / "solvers"
EXAMPLES = Path(__file__).parents[1] / "examples"
EXAMPLES_PAGE = Path(__file__).parent / "examples.md"
TAKES = {"chain": "a chain; any other graph as a series of blocks between splitting vertices", "any": "any"}


def main() -> None:
    solvers = registry.all_solvers()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for s in solvers:
        (FOLDER / f"{s.name}.md").write_text(page(s), encoding="utf-8")
    (FOLDER / "index.md").write_text(index(solvers), encoding="utf-8")
    scripts = sorted(EXAMPLES.glob("*.py"))
    EXAMPLES_PAGE.write_text(examples(scripts), encoding="utf-8")
    print(f"wrote {len(solvers) + 1} pages to {FOLDER}, and {len(scripts)} examples to {EXAMPLES_PAGE}")


def page(s: Solver) -> str:
    """The page of a solver: its registry entry as a table, then the docstring of its file."""
    title, text = described(s)
    facts = [
        ("graphs", TAKES.get(s.graphs, s.graphs)), ("minimises", s.objective),
        ("optimal", s.optimal or "no claim"), ("complexity", s.complexity), ("citation", s.citation),
    ]  # fmt: skip
    rows = "\n".join(f"| {name} | {cell(value)} |" for name, value in facts)
    asked = f'```python\nplan = rekindle.plan(trace, budget=0.5, solver="{s.name}")\n```'
    return f"# {s.name}\n\n{title}\n\n{asked}\n\n| | |\n|---|---|\n{rows}\n\n{text}\n"


def index(solvers: list[Solver]) -> str:
    """The index page: a table with one row for each solver."""
    rows = "\n".join(
        f"| [{s.name}]({s.name}.md) | {s.graphs} | {cell(s.objective)} | {cell(s.optimal or 'no claim')} "
        f"| {cell(s.complexity)} |"
        for s in solvers
    )
    return (
        "# Solvers\n\nEvery solver proposes schedules; one judge computes the memory and the cost of each. An optimality claim "
        "is about the solver's own objective. [How to choose](../choosing.md); [how they compare](../solver_table.md).\n\n"
        f"| name | graphs | minimises | optimal | complexity |\n|---|---|---|---|---|\n{rows}\n"
    )


def examples(scripts: list[Path]) -> str:
    """The page of examples: each script whole, under its name."""
    texts = [f"## {p.stem}\n\n```python\n{p.read_text(encoding='utf-8').strip()}\n```\n" for p in scripts]
    return "# Examples\n\nThe scripts of the folder `examples/`.\n\n" + "\n".join(texts)


def described(s: Solver) -> tuple[str, str]:
    """Title and text from the docstring of the solver's file, with words like "Problem:" in bold."""
    doc = (sys.modules[s.solve.__module__].__doc__ or s.doc).strip()
    title, _, text = doc.partition("\n")
    paragraphs = re.split(r"\n\s*\n", text.strip())
    return title, "\n\n".join(re.sub(r"^([A-Z][a-z]+):\s", r"**\1.** ", p) for p in paragraphs)


def cell(text: str) -> str:
    """Text escaped for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")


if __name__ == "__main__":
    main()

"""Makes the pages that come from the code: solvers, operators, examples, the public names, notebooks.

Run by `make docs`; writes docs/solvers/, docs/notebooks/, docs/operators.md, docs/examples.md, docs/api.md and docs/api/,
which are not committed.
"""

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path

import rekindle
from rekindle.model.any_plan import AnyPlan
from rekindle.planning import registry
from rekindle.problem import Solver

DOCS = Path(__file__).parent
FOLDER = DOCS / "solvers"
EXAMPLES = DOCS.parent / "examples"
EXAMPLES_PAGE = DOCS / "examples.md"
NOTEBOOKS = DOCS.parent / "notebooks"
API = {  # public names by heading; a name that stands under none comes last
    "One line": ["checkpoint", "restore"],
    "The steps": ["trace", "plan", "frontier", "apply", "verify", "status", "load", "cite"],
    "Will it fit?": ["estimate", "largest_batch", "Estimate", "LargestBatch"],
    "Plans and results": ["Plan", "PartsPlan", "Trace", "Check", "Status"],
    "Graphs and schedules": ["Graph", "Op", "Value", "Link", "Schedule", "Run", "Free", "Offload", "Fetch", "simulate",
                             "Simulation"],
    "Errors and warnings": ["RekindleError", "UsageError", "InfeasibleBudget", "TraceError", "PlanMismatch",
                            "ParityError", "FormatError", "RekindleWarning"],
}  # fmt: skip
API_HEAD = """# Public names

`import rekindle` gives these names. `rekindle.zoo.names()` lists the models that `rekindle.zoo.load(name, batch=…)`
builds, each with a sample. [Lightning's callback](integrations.md#lightning) is `rekindle.integrations.lightning.PlanCallback`.
"""
OPERATORS_HEAD = """# Operators in rewritten steps

The operators of which Rekindle knows more than PyTorch tells, from their records in `torch/operators/`. Other operators that
PyTorch marks as element-wise can run in slices too, and are probed.

- **in slices**: "same bits" by construction; "measured" for certain shapes on a CPU, and probed on the device at hand where a
  probe can run; "probed": in slices only where a probe finds the same bits.
- **over**: the result can be written over an argument.
- **smaller save**: backward can read signs, masks or offsets in place of whole tensors, or an argument for its shape only.
- **once**: the operator is never recomputed: another run may choose other elements.
"""
TAKES = {"chain": "a chain; any other graph as a series of blocks between splitting vertices", "any": "any"}


def main() -> None:
    solvers = registry.all_solvers()
    shutil.rmtree(FOLDER, ignore_errors=True)
    FOLDER.mkdir()
    for s in solvers:
        (FOLDER / f"{s.name}.md").write_text(page(s), encoding="utf-8")
    (FOLDER / "index.md").write_text(index(solvers), encoding="utf-8")
    (DOCS / "operators.md").write_text(operators(), encoding="utf-8")
    scripts = sorted(EXAMPLES.glob("*.py"))
    EXAMPLES_PAGE.write_text(examples(scripts), encoding="utf-8")
    shutil.rmtree(DOCS / "api", ignore_errors=True)
    (DOCS / "api").mkdir()
    for name, words in api().items():
        (DOCS / f"{name}.md").write_text(words, encoding="utf-8")
    shutil.rmtree(DOCS / "notebooks", ignore_errors=True)
    shutil.copytree(NOTEBOOKS, DOCS / "notebooks", ignore=shutil.ignore_patterns(".*"))
    print(
        f"wrote {len(solvers) + 1} pages to {FOLDER}, {len(scripts)} examples to {EXAMPLES_PAGE}, and the public names"
    )


def api() -> dict[str, str]:
    """The index of public names, "api", and a page per heading: each name with its docstring, which Sphinx reads."""
    names = [n for n in rekindle.__all__ if n not in ("__version__", "zoo")]
    groups = {head: [n for n in group if n in names] for head, group in API.items()}
    groups["Others"] = [n for n in names if not any(n in group for group in groups.values())]
    groups = {head: group for head, group in groups.items() if group}
    found = {
        f"api/{slug(head)}": "\n".join(
            [f"# {head}\n", "```{eval-rst}", ".. currentmodule:: rekindle\n", *map(_directive, group), "```\n"]
        )
        for head, group in groups.items()
    }
    rows = "\n".join(
        f"| {{py:obj}}`{n} <rekindle.{n}>` | {cell(_first_sentence(n))} |" for group in groups.values() for n in group
    )
    contents = "\n".join(found)
    tree = f"```{{toctree}}\n:hidden:\n\n{contents}\n```\n"
    return {"api": f"{API_HEAD}\n| name | |\n|---|---|\n{rows}\n\n{tree}", **found}


def slug(head: str) -> str:
    """A heading as the name of a file."""
    return re.sub(r"[^a-z]+", "-", head.lower()).strip("-")


def _first_sentence(name: str) -> str:
    paragraph = (getattr(rekindle, name).__doc__ or "").strip().split("\n\n")[0]
    return re.split(r"(?<=[.:])\s", " ".join(paragraph.split()), maxsplit=1)[0].rstrip(":")


def _directive(name: str) -> str:
    thing = getattr(rekindle, name)
    if not isinstance(thing, type):
        return f".. autofunction:: {name}\n"
    shown = "   :show-inheritance:" if issubclass(thing, Exception) else "   :members:"
    if issubclass(thing, AnyPlan):
        shown += "\n   :inherited-members:"
    return f".. autoclass:: {name}\n{shown}\n"


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
    contents = "\n".join(s.name for s in solvers)
    return (
        "# All solvers\n\nEvery solver proposes schedules; one judge computes the memory and the cost of "
        "each. An optimality claim "
        "is about the solver's own objective. [How to choose](../choosing.md); [how they "
        "compare](../solver_table.md).\n\n"
        f"| name | graphs | minimises | optimal | complexity |\n|---|---|---|---|---|\n{rows}\n\n"
        f"```{{toctree}}\n:hidden:\n\n{contents}\n```\n"
    )


def operators() -> str:
    """The page of operators: one row for each record that says something about rewrites."""
    import torch

    from rekindle.torch.operators.record import EVERYWHERE, ON_CPU, Operator, overloads
    from rekindle.torch.operators.table import OPERATORS, rule_of

    exact = {EVERYWHERE: "same bits", ON_CPU: "same bits on a CPU", "": "probed"}
    rows = []

    def in_slices(name: str, op: Operator) -> str:
        namespace, _, own = name.partition("::")
        if not hasattr(getattr(torch.ops, namespace), own):  # a record may name operators of other libraries
            return ""
        functional = [x for x in overloads(name) if not x._schema.is_mutable]
        if not any(rule_of(x) is not None for x in functional):
            return ""
        is_view = any(all(r.alias_info is not None for r in x._schema.returns) for x in functional if x._schema.returns)
        if op.unwritten or is_view:
            return exact[EVERYWHERE]
        return "measured" if op.same_bits and not op.exact else exact[op.exact]

    for name, op in sorted(OPERATORS.items(), key=lambda item: item[0].partition("::")[2].strip("_")):
        slices = in_slices(name, op)
        saved = op.saved[0] if op.saved else "shape" if op.shape_only else ""
        words = (slices, "yes" if op.over else "", saved, "yes" if op.selects else "")
        if any(words):
            rows.append(f"| `{name.removeprefix('aten::')}` | {' | '.join(words)} |")
    table = "| operator | in slices | over | smaller save | once |\n|---|---|---|---|---|\n"
    return f"{OPERATORS_HEAD}\n{table}" + "\n".join(rows) + "\n"


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

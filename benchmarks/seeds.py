"""The published table, ours beside it: writes results/DATE-seeds.json and .md, again after every model.

python benchmarks/seeds.py [--models resnet50,vgg16] [--methods plain,none,auto] [--suite seeds]
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from typing import Any

from common import path_of, provenance

from rekindle.bench import compare, run_suite

ABOUT = """Peak MB (2^20 bytes) of one training step by the published protocol, executed on fake tensors; behind it the
extra FLOPs of the executed step over the plain one. `published` is the published table (RTX 2080 Ti), `measured` its
rows under torch 2.13: `regular` the plain step, `ogc nonreentrant` the published solver's plan, run by
`torch.utils.checkpoint`."""


def main() -> None:
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--suite", default="seeds")
    p.add_argument("--models", type=lambda s: s.split(","))
    p.add_argument("--methods", type=lambda s: s.split(","))
    given = p.parse_args()
    begin, facts = time.perf_counter(), {"suite": given.suite, **provenance()}
    rows: list[dict[str, Any]] = []
    for row in run_suite(given.suite, given.models, given.methods, lambda line: print(line, file=sys.stderr)):
        if rows and rows[-1]["model"] != row["model"]:
            write(facts | {"seconds": round(time.perf_counter() - begin, 1)}, rows)
        rows.append(row)
    write(facts | {"seconds": round(time.perf_counter() - begin, 1)}, rows)
    print(markdown(rows))


def write(facts: dict[str, Any], rows: list[dict[str, Any]]) -> None:
    """Both files, with what there is so far."""
    suite = facts["suite"]
    path_of(f"{suite}.json").write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n", encoding="utf-8")
    head = [
        f"# Suite {suite}, {facts['date']}",
        "",
        f"- hardware: {facts['hardware']}",
        f"- command: `{facts['command']}`",
    ]
    head += ["- versions: " + ", ".join(f"{k} {v}" for k, v in facts["versions"].items()), ""]
    head += [ABOUT, ""] if suite == "seeds" else []
    path_of(f"{suite}.md").write_text("\n".join([*head, markdown(rows)]), encoding="utf-8")


def markdown(rows: list[dict[str, Any]]) -> str:
    """The comparison, the seconds it took to plan, and why what failed did."""
    header, *lines = compare(rows)
    text = [header, ["---"] + ["---:"] * (len(header) - 1), *lines]
    planned = [r for r in rows if r["solve_seconds"] is not None]
    table = [f"| {' | '.join(line)} |" for line in text] + ["", "Seconds to trace, and to solve by each method:", ""]
    for model in dict.fromkeys(r["model"] for r in planned):
        mine = [r for r in planned if r["model"] == model]
        solved = ", ".join(f"{r['method']} {r['solve_seconds']:.2f}" for r in mine)
        table.append(f"- {model}: trace {mine[0]['trace_seconds']:.2f}; {solved}")
    apart = max((abs(r["peak_mb"] / r["predicted_mb"] - 1) for r in planned if r["peak_mb"]), default=0.0)
    table += ["", f"The executed peak is within {apart:.2%} of the predicted one in every row."] if planned else []
    failed = [f"- {r['model']}, {r['method']}: {r['note']}" for r in rows if r["status"] != "ok"]
    return "\n".join([*table, *(["", "Failed:", "", *failed] if failed else [])]) + "\n"


if __name__ == "__main__":
    main()

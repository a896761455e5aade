"""The published table, ours beside it, row by row.

J. Feng, D. Huang, Optimal Gradient Checkpoint Search for Arbitrary Computation Graphs, CVPR 2021; its solver is called OGC.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import markdown as md
from .rows import Row, by_model, extra, known, peak, pick, plain_mb, planned_in

SAME = 0.01  # a published plain step within this of ours counts as the same measurement
RERUN = "measured_ogc_nonreentrant_mb"
RESNET18 = (
    "- The figures at hand of a run of resnet18 by PyTorch (94.0 MB plain, 51.3 MB by OGC) are left out: they cannot be of "
    "batch 256, whose input alone takes 147 MB."
)


def published_part(rows: Sequence[Row]) -> str:
    """The page's part on the suite seeds; empty where there are no rows of it."""
    groups = {m: g for (s, m), g in by_model(rows).items() if s == "seeds"}
    if not groups:
        return ""
    head = ["model, batch", "published: regular", "OGC", "OGC of regular", "OGC by PyTorch", "ours: plain"]
    head += ["at OGC's overhead", "of plain", "to OGC", "at OGC's memory", "extra FLOPs", "extra time"]
    lines, marks = [head], set()
    cuts, ours, ratios = [], [], []
    flops_costs, time_costs = [], []
    for model, mine in groups.items():
        plain = plain_mb(mine)
        regular, ogc, rerun = (known(mine, k) for k in ("published_regular_mb", "published_ogc_mb", RERUN))
        target, note = _target(regular, ogc, rerun, plain)
        marks |= set(note)
        at = pick(mine, "auto@33%", "flops")
        size = peak(at)
        reached = None if size is None or at is None else extra(at, "flops")
        share = size / plain if size and plain else None
        ratio = size / target if size and target else None
        cuts += [ogc / regular] if ogc and regular else []
        ours += [share] if share and ogc and regular else []
        ratios += [ratio] if ratio else []
        within = pick(mine, "auto=ogc", "flops")
        timed = pick(mine, "auto=ogc", "seconds")
        flops, time = _cost(within, "flops"), _cost(timed, "seconds")
        by_flops = time is not None and timed is not None and planned_in(timed) != "seconds"
        marks |= {"§"} if by_flops else set()
        flops_costs += [1 + flops] if flops is not None else []
        time_costs += [1 + time] if time is not None else []
        lines.append([
            f"{model}, {md.whole(mine[0].get('batch'))}{note}", md.mb(regular), md.mb(ogc), md.share(ogc, regular),
            md.mb(rerun), md.mb(plain), md.mb(size) + ("" if reached is None else f" ({reached:+.1%})"),
            md.percent(share), "-" if ratio is None else f"{ratio:.2f}", md.mb(peak(within)), md.plus(flops),
            md.plus(time) + (" §" if by_flops else ""),
        ])  # fmt: skip
    mean = md.geometric(ratios)
    lines.append([
        "geometric mean", "", "", md.percent(md.geometric(cuts)), "", "", "", md.percent(md.geometric(ours)),
        "-" if mean is None else f"{mean:.2f}", "", _mean_cost(flops_costs), _mean_cost(time_costs),
    ])  # fmt: skip
    text = [
        "## The published table, ours beside it",
        "",
        "Peak MB of one training step. `OGC` is the published solver, at one extra forward (+33 % FLOPs); `OGC by PyTorch` is "
        "its plan, run by `torch.utils.checkpoint` and measured by the protocol used here. `At OGC's overhead` is auto@33%, "
        "with the FLOPs that it takes; `to OGC` is its peak over that of OGC. `At OGC's memory` is auto=ogc: what it costs to "
        "stay within the memory of the published solver.",
        "",
        md.table(lines),
        "",
        "Geometric means: of shares and ratios; of extra cost, of the whole step's cost (1 + extra).",
    ]
    notes = {
        "¶": "OGC was not run by PyTorch: `to OGC` is over the published figure, whose plain step is ours.",
        "†": "no figure was published.",
        "§": "of a plan made for least FLOPs, not for least time.",
        "‡": f"there is no published figure that can be compared in MB: OGC was not run by PyTorch, and the published plain "
        f"step is further than {SAME:.0%} from ours. The shares of each one's own plain step can be compared.",
    }
    said = [f"- {mark} {words}" for mark, words in notes.items() if mark in marks]
    said += [RESNET18] if "resnet18" in groups else []
    return "\n".join([*text, *(["", *said] if said else [])])


def _target(
    regular: float | None, ogc: float | None, rerun: float | None, plain: float | None
) -> tuple[float | None, str]:
    """OGC's peak that ours can be compared with, in MB, and the mark that says what is special about it."""
    if ogc is None and rerun is None:
        return None, "†"
    if rerun is not None:
        return rerun, ""
    if regular and plain and abs(plain / regular - 1) <= SAME:
        return ogc, "¶"
    return None, "‡"


def _cost(row: Row | None, measure: str) -> float | None:
    return None if row is None or row["status"] != "ok" else extra(row, measure)


def _mean_cost(costs: Sequence[float]) -> str:
    mean = md.geometric(costs)
    return "-" if mean is None else md.plus(mean - 1)

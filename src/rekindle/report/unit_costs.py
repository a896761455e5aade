"""Modern models at half and a quarter of the plain activations, every operator at the same cost, beside FastSA.

A. Imanishi, Z. Xu, M. Takagi, S. Wang, E. Castillo, A Fast Heuristic to Optimize Time-Space Tradeoff for Large Models,
NeurIPS 2023.
"""

from __future__ import annotations

from collections.abc import Sequence

from . import markdown as md
from .rows import Row, by_model, extra, known, plain_mb

FASTSA = {0.5: 0.07, 0.25: 0.18}  # share of the plain peak -> mean extra cost as published


def unit_part(rows: Sequence[Row]) -> str:
    """The page's part on the suite modern in unit costs; empty where no row was planned in them."""
    groups = {m: g for (s, m), g in by_model(rows).items() if s == "modern" and any(r.get("cost") == "unit" for r in g)}
    if not groups:
        return ""
    heads = [h for s in FASTSA for h in (f"auto={s:g}", f"auto={s:g}, nodes")]
    lines = [["model", "ops", "nodes", *heads, "certified"]]
    by_op: dict[float, list[float]] = {s: [] for s in FASTSA}
    by_node: dict[float, list[float]] = {s: [] for s in FASTSA}
    least: dict[float, list[float]] = {s: [] for s in FASTSA}
    never, missed = dict.fromkeys(FASTSA, 0), dict.fromkeys(FASTSA, 0)
    for model, mine in groups.items():
        by_unit = {r["method"]: r for r in mine if r.get("cost") == "unit"}
        asked = {share: by_unit.get(f"auto={share:g}") for share in FASTSA}
        there = [r for r in asked.values() if r]
        line, said = [model, md.whole(known(there, "ops")), md.whole(known(there, "nodes"))], []
        for share, row in asked.items():
            cost = None if row is None or row["status"] != "ok" else extra(row, "unit")
            proof = None if cost is not None else impossible(mine, share)
            if cost is not None and row is not None:
                by_op[share].append(cost)
                known_least, nodes = row.get("least_overhead"), row.get("nodes_overhead")
                least[share] += [] if known_least is None else [known_least]
                by_node[share] += [] if nodes is None else [nodes]
                proven = "" if known_least is None else f" (≥ {known_least:.1%})"
                line += [f"{cost:+.1%}{proven} at {md.share(row['peak_mb'], plain_mb(mine))}", md.plus(nodes)]
            elif proof is not None:
                never[share] += 1
                line += ["impossible", "-"]
                said.append(proof)
            else:
                missed[share] += 1
                line += ["not run" if row is None else "not reached", "-"]
        lines.append([*line, "; ".join(dict.fromkeys(said)) or "-"])

    def over_all(found: dict[float, list[float]]) -> list[str]:
        """Means; none over fewer models than were reached."""
        return [md.plus(md.mean(found[s] if len(found[s]) == len(by_op[s]) else [])) for s in FASTSA]

    ops, nodes, certified = map(over_all, (by_op, by_node, least))
    lines.append(["mean", "", "", *(x for pair in zip(ops, nodes, strict=True) for x in pair), ""])
    if any(least.values()):
        lines.append(["mean, certified to be at least", "", "", *(x for c in certified for x in (c, "")), ""])
    lines.append(["FastSA, published mean", "", "", *(md.plus(x) for x in FASTSA.values() for _ in range(2)), ""])
    counts = "; ".join(
        f"{s:.0%}: {len(by_op[s])} reached, {never[s]} certified impossible, {missed[s]} neither" for s in FASTSA
    )
    return "\n".join([
        "## Modern models at half and a quarter of the memory", "",
        "Extra cost within half and a quarter of the plain step's activation peak, counted in two ways. In **op runs** every "
        "operator that computes something costs one and views are free; that is what the plans minimise, and in brackets is "
        "what any schedule within that memory costs at least, certified. In **nodes** every node of the captured torch.fx "
        "graph costs one, views and members of what an operator returns included. The FastSA paper gives each node of its "
        "graphs the same cost; that views are among these nodes is our reading, from their number (its LLaMA-7B has 8,330) and "
        "since it does not model that views share memory. Its means are over 23 models, which are not all the same as these; "
        "ours are over the models where that much memory is reached.", "", md.table(lines), "", f"{counts}.",
    ])  # fmt: skip


def impossible(rows: Sequence[Row], share: float) -> str | None:
    """What certifies that no plan of the model fits that share of the plain peak; None: nothing does.

    A bound on a failed row holds at any overhead; one on a row that ran, up to that row's overhead.
    """
    plain = plain_mb(rows)
    over = [r for r in rows if plain and r.get("bound_mb") and r["bound_mb"] > share * plain]
    if not over or plain is None:
        return None
    whole = [r for r in over if r["status"] == "failed"]
    if whole:
        return f"none below {max(r['bound_mb'] for r in whole) / plain:.1%}"
    best = max(over, key=lambda r: (r.get("overhead") or 0.0, r["bound_mb"]))
    cost = {"flops": "FLOPs", "seconds": "time", "unit": "op runs"}.get(best.get("cost") or "flops", "cost")
    return f"none below {best['bound_mb'] / plain:.1%} within {best.get('overhead') or 0.0:+.1%} {cost}"

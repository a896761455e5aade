"""Compares `auto` with every row of every other method: the check behind "never dominated by more than 1 %"."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from page.rows import MODEL, picked

MEASURES = {"seconds": "modelled time", "flops": "FLOPs"}
TOLERANCE_SHARE = 0.01  # of the peak, and of the whole step's cost (plain step and extra)
COLUMNS = [
    *MODEL, "method", "cost", "measure", "peak_mb", "share", "overhead", "nearest", "nearest_peak_mb",
    "nearest_overhead", "loss", "asked",
]  # fmt: skip


def standings(t: pd.DataFrame, tolerance: float = TOLERANCE_SHARE) -> pd.DataFrame:
    """One line per row of another method that ran, and per measure in which its cost is known. Columns:

    cost : the cost that the other row's plan minimised; missing if nothing was planned.
    peak_mb, share, overhead : of the other row; overhead as a fraction of the plain step's cost.
    nearest : method of the closest auto row, with its peak and overhead; missing if there is no auto row to compare with.
    loss : the least x such that this auto row's peak and cost are both at most 1 + x times the other row's. At or below 0, auto
        is as small and as cheap, or better.
    asked : if loss exceeds the tolerance, whether auto was asked a question to which the other row is the better answer (least
        memory within a cost that the other row keeps, least cost within a memory that it keeps, or least memory). If not, the
        other row lies between two auto rows, and auto was not asked there.
    """
    lines: list[dict[str, object]] = []
    for _, mine in t.groupby(MODEL, sort=False):
        auto = mine[mine["solver_name"] == "auto"]
        auto = auto.assign(limit_mb=_limits(auto, mine), allowed=_allowed(auto))
        for measure in MEASURES:
            extra = f"extra_{measure}"
            if mine.loc[mine["method"] != "plain", extra].isna().all():
                continue
            others = mine[(mine["solver_name"] != "auto") & mine["ran"] & mine[extra].notna()]
            others = others.drop_duplicates(["method", "planned_in", "peak_mb"])  # unplanned rows recur for every cost
            lines += _against(others, auto, measure, tolerance)
    return pd.DataFrame(lines, columns=COLUMNS)


def _against(others: pd.DataFrame, auto: pd.DataFrame, measure: str, tolerance: float) -> list[dict[str, object]]:
    extra = f"extra_{measure}"
    ran = auto[auto["ran"] & auto[extra].notna()]
    rivals = auto[auto["cost"].fillna("flops") == measure]
    lines: list[dict[str, object]] = []
    for o in others.to_dict("records"):
        worse = np.maximum(ran["peak_mb"] / o["peak_mb"], (1 + ran[extra]) / (1 + o[extra]))
        near = None if worse.empty else ran.loc[worse.idxmin()]
        loss = math.inf if near is None else round(float(worse.min()) - 1, 12)
        lines.append({
            "suite": o["suite"], "model": o["model"], "method": o["method"], "cost": o["planned_in"], "measure": measure,
            "peak_mb": o["peak_mb"], "share": o["share"], "overhead": o[extra],
            "nearest": None if near is None else near["method"],
            "nearest_peak_mb": None if near is None else near["peak_mb"],
            "nearest_overhead": None if near is None else near[extra],
            "loss": loss,
            "asked": loss > tolerance and bool(_beaten(rivals, o["peak_mb"], o[extra], extra, tolerance).any()),
        })  # fmt: skip
    return lines


def _beaten(rivals: pd.DataFrame, peak_mb: float, overhead: float, extra: str, tolerance: float) -> pd.Series:
    """The auto rows whose request a row of that peak and overhead keeps and answers better by more than the tolerance."""
    within_memory = rivals["method"].str.contains("=", regex=False)
    keeps = (peak_mb <= rivals["limit_mb"]).where(
        within_memory, rivals["allowed"].isna() | (overhead <= rivals["allowed"])
    )
    dearer = 1 + rivals[extra] > (1 + overhead) * (1 + tolerance)
    larger = rivals["peak_mb"] > peak_mb * (1 + tolerance)
    return keeps & (~rivals["ran"] | dearer.where(within_memory, larger))


def _allowed(auto: pd.DataFrame) -> pd.Series:
    """The extra cost that each row was allowed, as a fraction: "auto@8%" -> 0.08; missing for other goals."""
    return auto["method"].str.extract(r"^.+@(\d+(?:\.\d+)?)%$", expand=False).astype(float) / 100


def _limits(auto: pd.DataFrame, mine: pd.DataFrame) -> pd.Series:
    """The memory in MB that each auto row was given; missing if it was given none or the figure is unknown.

    "auto=0.5" has half the plain peak, "auto=ogc" the published solver's measured memory, "auto=feng" the peak of feng.
    """
    peaks = {
        cost: picked(mine, cost).set_index("method").query("ran")["peak_mb"] for cost in auto["cost"].fillna("flops")
    }

    def limit(row: pd.Series) -> float:
        _, equals, goal = row["method"].partition("=")
        if not equals:
            return math.nan
        if goal == "ogc":
            return float(row["measured_ogc_nonreentrant_mb"])
        try:
            return float(goal) * float(row["plain_mb"])
        except ValueError:
            cost = "flops" if pd.isna(row["cost"]) else row["cost"]
            return float(peaks[cost].get(goal, math.nan))

    return pd.Series([limit(row) for _, row in auto.iterrows()], index=auto.index, dtype=float)

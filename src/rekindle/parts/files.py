"""Reads plan files of both kinds: the plan of a whole step, and the plans of a model's parts."""

from __future__ import annotations

import math
import os
import re
from typing import Any

from ..arguments import file_name
from ..ask import Goal, PlanOptions
from ..compiling import SAVES
from ..errors import FormatError, UsageError
from ..model import formats, options_file
from ..model.graph import COSTS
from ..model.plan import Plan
from ..planning import plan_files
from ..printed import name, value
from .plan import COMPILED, COPYING, FORMAT, CompiledPart, Offloaded, Part, PartsPlan, SaveRule

TEXT_MOST_LETTERS = 4_000  # of the line that says what is covered
PATH_MOST_LETTERS = 1_000
PARTS_MOST = 100_000
FORMATS = FORMAT, COMPILED, COPYING


def load(path: str | os.PathLike[str]) -> Plan | PartsPlan:
    """Read a plan file and check its figures again: of a whole step (`Plan`), or of the parts of a model (`PartsPlan`).

    The schedule is judged again, figures that follow from others must agree with them, and the certificate is proven again.
    Where no proof is found in short time (about 0.2 s), `Plan.verified` is False, and the plan says so wherever it is printed.
    The peak of a step of parts was measured, so it cannot be checked by reading: `checkpoint` measures it again.

    Raises
    ------
    FormatError : the file is damaged, foreign, or claims other figures than its schedules have.
    UsageError : `path` is no path.
    """
    given = file_name(path)
    return from_document(formats.read_json(given), name(given))


def from_document(doc: Any, where: str) -> Plan | PartsPlan:
    """The plan of a document that a plan file of either kind holds, checked as `load` says. where : its name in errors.

    Raises
    ------
    FormatError : as `load`.
    """
    if not isinstance(doc, dict) or doc.get("format") not in FORMATS:
        return plan_files.from_document(doc, where)
    return parts_plan_from_json(doc, where)


def from_text(text: str, where: str) -> Plan | PartsPlan:
    """The plan of a text that holds what a plan file of either kind holds, checked as `load` says. where : names it in errors.

    Raises
    ------
    FormatError : as `load`.
    """
    return from_document(formats.parse_json(text, where), where)


def parts_plan_from_json(doc: dict[str, Any], where: str) -> PartsPlan:
    """The plans of parts that a document `rekindle.parts/1` holds, checked. where : its name in errors.

    Raises
    ------
    FormatError : as `load`.
    """
    r = formats.Reader(doc, where, doc["format"] if doc.get("format") in FORMATS else FORMAT)
    graphs = [formats.graph_from_json(g, f"{where}: graph {i}") for i, g in enumerate(r.items("graphs"))]
    plans = []
    for i, p in enumerate(r.items("plans")):
        at = f"{where}: plan {i}"
        graph = formats.Reader(p, at).whole("graph")
        if not 0 <= graph < len(graphs):
            raise FormatError(f"{at} is for graph {graph}, and the file has {len(graphs)}")
        plans.append(plan_files.plan_from_json({**p, "graph": None}, at, graphs[graph]))
    parts = [_part(p, f"{where}: part {i}", plans) for i, p in enumerate(r.items("parts"))]
    if len(parts) > PARTS_MOST or len({p.path for p in parts}) < len(parts):
        raise FormatError(f"{where} should name each part once, and at most {PARTS_MOST:,}; make the plan again")
    try:
        goal = Goal.from_json(r.table("goal"))
    except UsageError as e:
        raise FormatError(f"{where}: {e}") from None
    cost = r.text("cost")
    if cost not in COSTS:
        raise FormatError(f"{where}: its cost {value(cost)} is none of {', '.join(COSTS)}")
    asked = PlanOptions(goal, cost=cost)
    asked, captured = options_file.from_json(formats.Reader(r.table("options", {}), f"{where}: options"), asked)
    plan = PartsPlan(
        _text(r, "module_name"), tuple(parts), r.whole("peak_bytes"), _maybe(r, "measured_bytes"), r.whole("resident_bytes"),
        _maybe(r, "baseline_peak_bytes"), r.number("overhead"), r.number("least_overhead"), goal, cost, _text(r, "covered"),
        r.number("solve_seconds"), _text(r, "not_counted"), _maybe(r, "input_bytes"), r.flag("keeps_caches", False),
        _stages(r), asked, captured,
        {k: str(v) for k, v in r.table("created_with").items()},
    )  # fmt: skip
    if wrong := _wrong(plan):
        raise FormatError(f"{where} is inconsistent: {wrong}; make the plan again")
    return plan


def _part(doc: Any, where: str, plans: list[Plan]) -> Part:
    r = formats.Reader(doc, where)
    path, numbers = r.text("module"), r.ints("plans")
    if not _is_path(path):
        raise FormatError(f"{where}: {value(path)} is no name of a submodule")
    again, compiled = r.flag("again", False), _compiled(r)
    one_way = [bool(numbers), again, compiled is not None].count(True) == 1
    if not one_way or not all(0 <= i < len(plans) for i in numbers):
        raise FormatError(f"{where} should name some of the file's {len(plans)} plans, not {value(list(numbers))}")
    offloaded, calls = _offloaded(r), r.whole("calls", 1)
    if not 1 <= calls <= PARTS_MOST:
        raise FormatError(f"{where}: no step calls a part {calls} times")
    return Part(path, tuple(plans[i] for i in numbers), again, _rule(r, again), compiled, offloaded, calls)


def _stages(r: formats.Reader) -> tuple[str, ...]:
    stages = r.items("stages") if "stages" in r.doc else []
    if len(stages) > PARTS_MOST or not all(isinstance(x, str) and _is_path(x) for x in stages):
        raise FormatError(f"{r.where}: 'stages' should be a list of names of stages")
    return tuple(stages)


def _is_path(x: str) -> bool:
    return 0 < len(x) <= PATH_MOST_LETTERS and x.isprintable()


def _compiled(r: formats.Reader) -> CompiledPart | None:
    if "compiled" not in r.doc:
        return None
    c = formats.Reader(r.table("compiled"), f"{r.where}: compiled")
    if (saves := c.text("saves")) not in SAVES:
        raise FormatError(f"{c.where}: 'saves' should be one of {', '.join(SAVES)}, not {value(saves)}")
    sizes = c.whole("held_bytes"), c.whole("min_cut_bytes")
    made = CompiledPart(saves, *sizes, c.number("extra_seconds"), c.whole("calls", 1), c.text("kind", ""))
    if min(*sizes, made.extra_seconds, made.calls - 1) < 0 or not re.fullmatch("[0-9a-f]{0,64}", made.kind):
        raise FormatError(f"{c.where} has a figure below 0, or no kind of parts")
    return made


def _offloaded(r: formats.Reader) -> Offloaded | None:
    if "offloaded" not in r.doc:
        return None
    x = formats.Reader(r.table("offloaded"), f"{r.where}: offloaded")
    made = Offloaded(x.whole("bytes"), tuple(x.ints("stay")))
    if made.bytes < 1 or min(made.stay, default=0) < 0:
        raise FormatError(f"{x.where} should copy some bytes, and name inputs from 0 on")
    return made


def _rule(r: formats.Reader, again: bool) -> SaveRule | None:
    if (doc := r.table("saves", {})) == {}:
        return None
    rule = SaveRule(formats.Reader(doc, f"{r.where}: saves").number("least"))
    if not again or not rule.is_valid():
        raise FormatError(f"{r.where}: 'saves' should give a positive number, for a part that runs again")
    return rule


def _text(r: formats.Reader, key: str) -> str:
    text = r.text(key)
    if len(text) > TEXT_MOST_LETTERS or text and not text.isprintable():
        raise FormatError(f"{r.where}: {key!r} should be one short line, not {value(text)}")
    return text


def _maybe(r: formats.Reader, key: str) -> int | None:
    return None if r.doc.get(key) is None else r.whole(key)


def _wrong(plan: PartsPlan) -> str:
    """The first contradiction among the figures; "" where there is none."""
    if not 0 <= plan.resident_bytes <= plan.peak_bytes:
        return f"its peak {plan.peak_bytes} is below what is held during the whole step, {plan.resident_bytes}"
    if plan.measured_bytes is not None and plan.measured_bytes > plan.peak_bytes:
        return f"its peak {plan.peak_bytes} is below the measured one, {plan.measured_bytes}"
    if plan.goal.budget is not None and plan.peak_bytes > plan.goal.budget:
        return f"its peak {plan.peak_bytes} is above its goal {plan.goal.budget}"
    if not (0 <= plan.least_overhead <= plan.overhead + plan_files.FILE_EPS and math.isfinite(plan.overhead)):
        return f"its least overhead {plan.least_overhead:g} does not lie between 0 and its overhead {plan.overhead:g}"
    if not 0 <= plan.solve_seconds <= plan_files.SOLVE_MOST_S:
        return f"no search takes {plan.solve_seconds:g} seconds"
    return ""

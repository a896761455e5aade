"""Measured ways of compiled parts, remembered on disk: the next start of the same script measures no way again.

One JSON file per kind of part, in the folder `ways` of the cache folder ($REKINDLE_CACHE or ~/.cache/rekindle). Its name is a
digest of everything that the figures depend on: torch, the device, the compiler's options, the code and shapes of the part and
of its call. A file that is damaged counts as absent and is replaced; if the folder cannot be used, nothing is remembered.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any

import torch

from ...compiling import SAVES, Compiled, CompileOptions
from ...errors import FormatError
from ...model import formats
from ...model.cache_folder import cache_folder
from ...parts.ways import Figures, Way
from ...planning.remembered import digest, read, write
from ..compiled.saving import VERSION as SAVING_VERSION
from ..costs.cache import environment
from .compiled_finding import described
from .compiled_ways import Measured
from .finding import Unit

FORMAT = "rekindle.ways/2"  # raise it whenever other ways are offered of a part that was measured
FIGURES = 5  # of a way that copies nothing


def place(unit: Unit, kind: str, device: torch.device, options: CompileOptions, saves: Sequence[str]) -> Path | None:
    """The file that holds what was measured of such a part in these ways; None: nothing is remembered of it."""
    folder = cache_folder("ways")
    classes = {c for m in unit.module.modules() for c in type(m).__mro__ if not c.__module__.startswith("torch.")}
    try:
        code = sorted(inspect.getsource(c) for c in classes - {object})
    except (OSError, TypeError):  # a class that was typed in: its code may be another one next time
        return None
    settings = [
        sorted((k, described(x)) for k, x in vars(m).items() if not k.startswith("_")) for m in unit.module.modules()
    ]
    told = [
        environment(device),
        options.to_json(),
        [*saves],
        SAVING_VERSION,
        kind,
        repr(unit.given.casts),
        code,
        settings,
    ]
    return None if folder is None else folder / digest(told)


def recall(path: Path | None) -> Measured | None:
    """The ways in the file; None: there are none."""
    return read(path, FORMAT, _measured)


def _measured(r: formats.Reader) -> Measured:
    ways = [_way(formats.Reader(doc, r.where)) for doc in r.items("ways")]
    if not ways or ways[0].compiled != Compiled():
        raise FormatError(f"{r.where} does not begin with the part compiled as it is")
    return Measured(ways, [str(x) for x in r.items("wrong")], r.number("eager_seconds"))


def keep(path: Path | None, measured: Measured) -> None:
    """Write the ways to the file."""
    rows: list[dict[str, Any]] = [
        {
            "saves": None if w.compiled is None else w.compiled.saves,
            "figures": astuple(w.figures)[:FIGURES],
            "exact": w.is_exact,
        }
        for w in measured.ways
    ]
    write(path, {"format": FORMAT, "ways": rows, "wrong": [*measured.wrong], "eager_seconds": measured.eager_seconds})


def _way(r: formats.Reader) -> Way:
    figures = r.items("figures")
    if len(figures) != FIGURES or not all(isinstance(x, int | float) and 0 <= x < 2**62 for x in figures):
        raise FormatError(f"{r.where} has no figures of a way")
    held, forward, backward, extra, plain = figures
    saves = None if r.doc.get("saves") is None else r.text("saves")
    if saves is not None and saves not in SAVES:
        raise FormatError(f"{r.where} names no way")
    sizes = Figures(int(held), int(forward), int(backward), float(extra), float(plain))
    return Way(None, sizes, compiled=None if saves is None else Compiled(saves), is_exact=r.flag("exact", False))

"""Bytes as people write them, and the one goal of a plan."""

from __future__ import annotations

import re
from dataclasses import asdict, dataclass
from typing import Any

from .errors import UsageError

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str) -> int:
    """Bytes in "8GiB", "8 GB", "512MiB" or "123456".

    Raises
    ------
    UsageError : the text is no size.
    """
    m = re.fullmatch(r"\s*(\d+(?:\.\d*)?)\s*([a-zA-Z]*)\s*", text)
    if not m or m[2].upper() not in _UNITS:
        raise UsageError(f"{text!r} is no size; write it like 8GiB, 8GB, 512MiB or as a number of bytes")
    return int(float(m[1]) * _UNITS[m[2].upper()]) if m[2] or "." in m[1] else int(m[1])


def format_bytes(n: float) -> str:
    """1536 -> "1.5 KiB"; one decimal, binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(n) < 1024:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1024
    return f"{n:.1f} TiB"


@dataclass(frozen=True)
class Goal:
    """Exactly one of:

    budget : peak bytes of the whole step, everything included.
    fraction : the activation peak as a fraction, in (0, 1], of the plain run's.
    max_overhead : least memory within this extra cost (0.1: 10 %).
    least_memory : least memory at any cost.
    """

    budget: int | None = None
    fraction: float | None = None
    max_overhead: float | None = None
    least_memory: bool = False

    @classmethod
    def parse(
        cls, budget: str | int | float | None = None, max_overhead: float | None = None, minimize: str | None = None
    ) -> Goal:
        """The goal a user states.

        Raises
        ------
        UsageError : none or several were given, or one is out of range.
        """
        given = [
            k for k, x in (("budget", budget), ("max_overhead", max_overhead), ("minimize", minimize)) if x is not None
        ]
        if len(given) != 1:
            what = "none" if not given else " and ".join(given)
            raise UsageError(f"give exactly one of budget, max_overhead and minimize; got {what}")
        if minimize is not None:
            if minimize != "memory":
                raise UsageError(f'minimize={minimize!r} is unknown; the one choice is "memory"')
            return cls(least_memory=True)
        if max_overhead is not None:
            if isinstance(max_overhead, bool) or not 0 <= float(max_overhead) < float("inf"):
                raise UsageError(
                    f"max_overhead={max_overhead!r} must be a fraction of at least 0 (0.1 means 10 % more)"
                )
            return cls(max_overhead=float(max_overhead))
        if isinstance(budget, str):
            return cls(budget=parse_bytes(budget))
        if isinstance(budget, float):
            if not 0 < budget <= 1:
                raise UsageError(
                    f"budget={budget!r}: a float is a fraction of the plain run's activation peak, in (0, 1]; "
                    "give bytes as an int or as a string like '8GiB'"
                )
            return cls(fraction=budget)
        if not isinstance(budget, int) or isinstance(budget, bool) or budget < 0:
            raise UsageError(
                f"budget={budget!r} is no size; write it like '8GiB', an int of bytes, or a float in (0, 1]"
            )
        return cls(budget=budget)

    @classmethod
    def from_json(cls, doc: dict[str, Any]) -> Goal:
        """The goal that `to_json` wrote.

        Raises
        ------
        UsageError : it is not one goal, or out of range.
        """
        if doc == {"least_memory": True}:
            return cls(least_memory=True)
        if len(doc) != 1 or not set(doc) <= {"budget", "fraction", "max_overhead"}:
            raise UsageError(f"{doc!r} is not one goal")
        ((kind, x),) = doc.items()
        if not isinstance(x, int | float) or (kind == "fraction") != isinstance(x, float) and kind != "max_overhead":
            raise UsageError(f"{doc!r} is no goal")
        return cls.parse(max_overhead=x) if kind == "max_overhead" else cls.parse(budget=x)

    def limit(self, resident: int, baseline_activation: int) -> int | None:
        """The peak in bytes to stay within, resident included; None where the goal is no budget."""
        if self.budget is not None:
            return self.budget
        if self.fraction is not None:
            return resident + int(self.fraction * baseline_activation)
        return None

    def to_json(self) -> dict[str, Any]:
        return {k: v for k, v in asdict(self).items() if v is not None and v is not False}

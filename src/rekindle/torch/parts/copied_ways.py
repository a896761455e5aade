"""Ways of parts that copy to the host what their forward saves, beside the ways that keep it."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ...model.graph import Link
from ...parts.ways import WAYS_MOST, Saves, Way, thinned, with_copies
from ...saying.progress import announce
from ..offload.away import HostPool
from ..trace import plain_forward
from ..ways.trial_steps import TrialSteps
from .between import Between
from .choices import Choices

log = logging.getLogger("rekindle")
T = TypeVar("T")


def with_copied_ways(choices: Choices, now: Between, link: Link, pool: HostPool, device: torch.device) -> Choices:
    """The choices, and besides ways that copy to the host. Modules that are called in several kinds of calls copy nothing.

    now : what a measured step says of the order of calls, and of the tensors that several parts have. pool : of the host's
    memory to which ways copy. Forwards of one part of each kind are run, to see what they save and how long they take.
    """
    own = choices.staying
    alone = {numbers[0] for numbers in own.by_module() if len(numbers) == 1}
    known: dict[Any, Any] = {}

    def once(unit: int, what: Any, ask: Callable[[TrialSteps], T]) -> T:
        """The answer of one part of the unit's kind."""
        u = own.units[unit]
        key = (u.kind or u.path) if u.trace is None else id(u.trace), what
        if key not in known:
            with TrialSteps(u, device).ready() as trial:
                known[key] = ask(trial)
        return known[key]  # type: ignore[no-any-return]

    def seconds(unit: int | None) -> tuple[float, float]:
        """Of a forward and a backward of the unit as it is; None: of nothing."""
        if unit is None:
            return 0.0, 0.0
        taken = once(unit, "seconds", lambda trial: trial.forward_seconds(_plain(own, unit)))
        return taken, max(0.0, own.ways[unit][0].figures.plain - taken)

    def saves(unit: int, number: int, way: Way) -> Saves | None:
        if way.is_plain or not now.calls[unit]:
            return None
        chosen = [number if i == unit else 0 for i in range(len(own.units))]
        try:
            found = once(unit, number, lambda trial: trial.saved(own.forward([unit], chosen)))
        except torch.OutOfMemoryError:
            raise
        except Exception as e:  # Dynamo refuses torch.func.vjp in forward where something sees what is saved
            log.debug("%s copies nothing: %s", own.units[unit].path, e)
            return None
        sizes = tuple(size for size, given in found if given is None or given not in now.shared[unit])
        times = [seconds(n) for n in now.next[unit]]
        return Saves(sizes, tuple(sorted(now.shared[unit])), *(min(x) for x in zip(*times, strict=True)))

    ways = []
    for i, found in enumerate(own.ways):
        announce(own.options.progress, f"looking what {own.units[i].path} saves, to copy it to the host")
        made = with_copies(found, [saves(i, n, w) for n, w in enumerate(found)], link) if i in alone else [*found]
        ways.append(thinned(made, max(len(found), 2 * WAYS_MOST)))
    return replace(own, ways=ways, pool=pool)


def _plain(choices: Choices, unit: int) -> Callable[..., Any]:
    """The unit's forward in its first way."""
    if choices.units[unit].trace is None and choices.compile is None:
        return plain_forward(choices.units[unit].module)
    return choices.forward([unit], [0] * len(choices.units))

"""Words that the shell offers when a user presses the tab key: models, solvers, devices, choices."""

from __future__ import annotations

from collections.abc import Iterable

from .. import zoo
from ..ask import EFFORTS, GRADIENTS, PARITIES
from ..model.graph import COSTS
from ..planning import registry
from ..torch.costs import devices

OFFLOADS: dict[str, bool | str] = {"no": False, "yes": True, "auto": "auto"}  # --offload -> `offload` of Python


def models(incomplete: str) -> list[str]:
    """Models of the zoo, as commands take them."""
    return _beginning(incomplete, (f"zoo:{name}" for name in zoo.names()))


def solvers(incomplete: str) -> list[tuple[str, str]]:
    """Solvers, each with what it is."""
    return [(s.name, s.doc.partition("\n")[0]) for s in registry.all_solvers() if s.name.startswith(incomplete)]


def targets(incomplete: str) -> list[str]:
    """Devices with known rates."""
    return _beginning(incomplete, devices.names())


def costs(incomplete: str) -> list[str]:
    """Units of cost."""
    return _beginning(incomplete, COSTS)


def efforts(incomplete: str) -> list[str]:
    """How long a search may take."""
    return _beginning(incomplete, EFFORTS)


def parities(incomplete: str) -> list[str]:
    """How near to eager's numbers a plan must be."""
    return _beginning(incomplete, PARITIES)


def offloads(incomplete: str) -> list[str]:
    """The words of --offload."""
    return _beginning(incomplete, OFFLOADS)


def gradients(incomplete: str) -> list[str]:
    """How a training loop may treat gradients."""
    return _beginning(incomplete, GRADIENTS)


def minimized(incomplete: str) -> list[str]:
    """What --minimize takes."""
    return _beginning(incomplete, ("memory",))


def _beginning(incomplete: str, words: Iterable[str]) -> list[str]:
    return [w for w in words if w.startswith(incomplete)]

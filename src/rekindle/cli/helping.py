"""The help of commands: flags without a type, choices that are listed when the help is shown, one line about --debug."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from typer.core import TyperCommand

from ..planning import registry
from ..torch.costs import devices

EPILOG = "With --debug, an error shows its traceback."


def solver_names() -> list[str]:
    """The names that --solver takes. The files of all solvers are imported: a tenth of a second, and scipy."""
    return [s.name for s in registry.all_solvers()]


# Texts in a help, and what stands in their place. Solvers are imported when a help is shown, not before.
CHOICES: dict[str, Callable[[], list[str]]] = {"{solvers}": solver_names, "{devices}": devices.names}


class Unprinted(Exception):
    """The help or the version could not be written to standard output; the cause says why."""


@contextmanager
def printing() -> Iterator[None]:
    """Raise Unprinted for an OSError of the body, which prints: it is no failure of a command."""
    try:
        yield
    except OSError as e:
        raise Unprinted from e


class Command(TyperCommand):
    """A command whose help fits 80 columns: its flags show no type, and its choices are listed."""

    def get_params(self, ctx: Any) -> Any:
        return plain_flags(super().get_params(ctx))

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        return [piece.strip("{}") for piece in super().collect_usage_pieces(ctx)]

    def format_help(self, ctx: Any, formatter: Any) -> None:
        for p in self.params:
            text: str = getattr(p, "help", None) or ""
            for place, names in CHOICES.items():
                if place in text:
                    text = text.replace(place, ", ".join(names()))
            if text:
                p.help = text  # type: ignore[attr-defined]
        self.help = "\n\n".join(" ".join(p.split()) for p in (self.help or "").split("\n\n"))  # wrapped anew
        with printing():
            super().format_help(ctx, formatter)


def plain_flags(params: Any) -> Any:
    """The parameters of a command, with an empty word in place of the type of flags and arguments, which their names tell."""
    for p in params:
        if getattr(p, "is_flag", False) and p.metavar is None:
            p.metavar = ""
        elif p.param_type_name == "argument":
            p.display_type_rich = _nothing  # of one object: typer has no option for it
    return params


def _nothing(ctx: Any) -> str:
    return ""

"""The interface of every plan: of a whole step, or of the parts of a model."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Self

from ..arguments import file_name
from ..ask import Goal, PlanOptions, TraceOptions
from ..saying.progress import Progress
from . import formats

if TYPE_CHECKING:
    from .plan import Plan

# Functions by which plans show themselves. They stand in rooms above this one; `show.faces` puts them here.
FACES: dict[str, Callable[..., Any]] = {}


class AnyPlan(ABC):
    """A plan of a training step: of the whole model, which counts as one part, or of several parts.

    kind : "step" of the plan of a whole step, "parts" of the plans of a model's parts. Type checkers tell the two by it.
    """

    kind: ClassVar[str]
    goal: Goal
    offer: tuple[int, float] | None

    @property
    @abstractmethod
    def options(self) -> PlanOptions:
        """The options that the plan was made with."""

    @property
    @abstractmethod
    def trace_options(self) -> TraceOptions:
        """How the step was captured."""

    @property
    @abstractmethod
    def pieces(self) -> Sequence[tuple[str, Plan]]:
        """(path of the part, its plan) for each schedule. A whole step is one part, at the path ""."""

    @abstractmethod
    def each(self, change: Callable[[Plan], Plan]) -> Self:
        """The same plan with every plan of a schedule changed."""

    @property
    @abstractmethod
    def sentence(self) -> str:
        """One plain sentence: does it fit, at what price, and what is proven or covered."""

    @abstractmethod
    def figures(self) -> dict[str, Any]:
        """The figures of the plan by name."""

    @abstractmethod
    def to_json(self) -> dict[str, Any]:
        """The document that the plan's file holds."""

    @abstractmethod
    def explain(self) -> Any:
        """Where the plan's memory goes. Printed, one screen of 80 columns."""

    @abstractmethod
    def _rows(self) -> list[tuple[str, str]]:
        """The rows of the printed plan: (name, words)."""

    def distinct(self) -> list[tuple[Plan, list[str]]]:
        """Each different plan of a schedule, with the paths of the parts that run by it."""
        found: dict[Any, tuple[Plan, list[str]]] = {}
        for path, p in self.pieces:
            found.setdefault((p.graph_hash, p.schedule), (p, []))[1].append(path)
        return list(found.values())

    def to_text(self) -> str:
        """The document as the text of its file."""
        return formats.as_text(self.to_json())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the plan to one JSON file, whole or not at all; a link stays a link.

        Raises
        ------
        UsageError : `path` is no path, or is a folder, a device or a pipe, or its folder cannot be written to.
        RekindleError : the disk is full or fails; a file that was there is as it was.
        """
        formats.write_json(file_name(path), self.to_json())

    def to_html(
        self,
        path: str | os.PathLike[str],
        *,
        frontier: Sequence[Plan] | bool | None = None,
        progress: Progress = None,
    ) -> None:
        """Write a report to one HTML file, which needs no network: memory over time, holders of the peak, what is recomputed.
        Plans of parts have a section for each different part.

        frontier : the memory/time curve that the report shows: plans of the same graph, as `rekindle.frontier` gives them;
            True: a search of a few seconds; False: none; None: a search if the graph is small. Plans of parts take True,
            which searches for the curve of each part, or False.
        progress : as in `rekindle.plan`.

        Raises
        ------
        UsageError : as `save`; also where `frontier` is something else, or holds plans of another graph.
        RekindleError : as `save`.
        """
        FACES["report"](self, path, frontier, progress)

    def _repr_html_(self) -> str:
        return str(FACES["html"](self))

    def __str__(self) -> str:
        rows = self._rows()
        width = max(len(k) for k, _ in rows)
        return "\n".join([f"{k:<{width}}  {words}" for k, words in rows] + [self.sentence])

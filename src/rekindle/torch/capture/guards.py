"""Whether a module is still in the state in which a step of it was captured.

A captured step holds for the module as it was: the attributes that forward read (numbers, flags, configurations, functions,
and what lists and objects among them hold), the hooks and forwards of submodules, which parameters train, the shapes of
parameters and buffers, and what forward reads of globals. A call while one of them differs is another step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from .module_state import ModuleState
from .values import Key

_MISSING: Any = object()


@dataclass(frozen=True)
class Expected:
    """The state of a module that a captured step takes for granted.

    reads : path of a submodule -> names of the attributes that forward read there ("*": all); None: all of all submodules.
    ignored : attributes, by qualified name, and globals, as named in `keys`, that do not matter although forward reads them,
        since it changes them itself.
    keys : what is guarded, such as "drop.p" or "the hooks of encoder.0" -> a key of its value.
    """

    reads: Mapping[str, frozenset[str]] | None
    ignored: frozenset[str]
    keys: Mapping[str, Key]

    @classmethod
    def of(
        cls,
        model: nn.Module,
        reads: Mapping[str, Iterable[str]] | None = None,
        ignored: Iterable[str] = (),
        written: Collection[Any] = (),
    ) -> Expected:
        """The present state of the module. written : places outside of it that forward changes itself, as `Globals.written`
        takes them; they are ignored too."""
        names = None if reads is None else {path: frozenset(found) for path, found in reads.items()}
        left_out = frozenset(ignored)
        state = ModuleState(model, names, left_out)
        if more := state.written(written):
            left_out |= more
            state = ModuleState(model, names, left_out)
        return cls(names, left_out, state.keys)

    def differences(self, model: nn.Module) -> list[str]:
        """What differs, such as "drop.p"."""
        now = ModuleState(model, self.reads, self.ignored).keys
        return [k for k in {**self.keys, **now} if self.keys.get(k, _MISSING) != now.get(k, _MISSING)]


class Guards:
    """Looks whether a module is in the expected state. It keeps submodules alive, but not the module itself."""

    def __init__(self, model: nn.Module, expected: Expected):
        self.expected = expected
        self._now: ModuleState | None = None
        self.modules: tuple[int, ...] = ()
        self.hold(model)

    def let_go(self) -> None:
        """Keep nothing alive until the next look."""
        self._now, self.modules = None, ()

    def unchanged(self, model: nn.Module) -> bool:
        """Whether a quick look finds everything as at the last look that found no difference."""
        return self._now is not None and self._now.unchanged(model)

    def hold(self, model: nn.Module) -> bool:
        """Whether nothing differs. The second look at an unchanged module is a quick one."""
        if self._now is not None and self._now.unchanged(model):
            return True
        now = ModuleState(model, self.expected.reads, self.expected.ignored)
        if now.keys != self.expected.keys:
            return False
        self._now = now
        self.modules = tuple(map(id, model.modules()))
        return True

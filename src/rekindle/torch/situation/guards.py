"""Whether a module is still in the state in which a step of it was captured.

A captured step is valid for one state of the module: the attributes that forward read (numbers, flags, configurations,
functions, with the contents of lists and objects among them), the hooks and forwards of submodules, which parameters train, the
shapes of parameters and buffers, and the globals that forward reads. A call in another state needs another step.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import nn

from ..tensors.identity import apart_from_identity
from .module_state import ModuleState
from .values import Key

_MISSING: Any = object()


@dataclass(frozen=True)
class Expected:
    """The state of a module for which a captured step is valid.

    reads : path of a submodule -> names of the attributes that forward read there ("*": all); None: all of all submodules.
    ignored : attributes, by qualified name, and globals, as named in `keys`, that forward reads and changes itself.
    keys : name of a guarded value, such as "drop.p" or "the hooks of encoder.0" -> a key of the value.
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
        """The present state of the module.

        written : places outside of it that forward changes itself, as in `SideEffects.written`; they are ignored too.
        """
        names = None if reads is None else {path: frozenset(found) for path, found in reads.items()}
        left_out = frozenset(ignored)
        state = ModuleState(model, names, left_out)
        if more := state.written(written):
            left_out |= more
            state = ModuleState(model, names, left_out)
        return cls(names, left_out, state.keys)

    def differences(self, model: nn.Module) -> list[str]:
        """Names of the values that differ now, such as "drop.p"."""
        now = ModuleState(model, self.reads, self.ignored).keys
        return [k for k in {**self.keys, **now} if self.keys.get(k, _MISSING) != now.get(k, _MISSING)]

    def made_anew(self, model: nn.Module) -> bool:
        """Whether the values that differ now do so only by the objects in them, as where each call makes an object anew."""
        now = ModuleState(model, self.reads, self.ignored).keys
        return now != self.keys and {k: apart_from_identity(x) for k, x in now.items()} == {
            k: apart_from_identity(x) for k, x in self.keys.items()
        }


class Guards:
    """Checks whether a module is in the expected state. It keeps submodules alive, but not the module itself."""

    def __init__(self, model: nn.Module, expected: Expected):
        self.expected = expected
        self._now: ModuleState | None = None
        self.modules: tuple[int, ...] = ()
        self.hold(model)

    def let_go(self) -> None:
        """Keep nothing alive until the next check."""
        self._now, self.modules = None, ()

    def unchanged(self, model: nn.Module) -> bool:
        """Whether a quick check finds the same objects as the last check that found no difference."""
        return self._now is not None and self._now.unchanged(model)

    def hold(self, model: nn.Module) -> bool:
        """Whether nothing differs. The second check of an unchanged module is quick."""
        if self._now is not None and self._now.unchanged(model):
            return True
        now = ModuleState(model, self.expected.reads, self.expected.ignored)
        if now.keys != self.expected.keys:
            return False
        self._now = now
        self.modules = tuple(map(id, model.modules()))
        return True

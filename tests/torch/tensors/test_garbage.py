"""Old objects are put aside while a model is planned, and come back."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from rekindle.torch.measure.memory import PYTHONS_OWN, old_objects_aside


@pytest.fixture
def unfrozen() -> Iterator[None]:
    """As in a user's process; the tests themselves freeze what they import."""
    gc.unfreeze()
    yield
    gc.freeze()


class Cycle:
    def __init__(self) -> None:
        self.me = self


@pytest.mark.usefixtures("unfrozen")
def test_objects_made_inside_are_collected_and_old_ones_come_back() -> None:
    with old_objects_aside():
        assert gc.get_freeze_count() > PYTHONS_OWN
        new = weakref.ref(Cycle())
        gc.collect()
        assert new() is None
    assert gc.get_freeze_count() == 0


def test_what_the_caller_has_frozen_stays_frozen() -> None:
    """The collector lists all objects but frozen ones. Frozen objects that die, in any thread, leave the count."""
    mine = Cycle()
    gc.freeze()
    before = gc.get_freeze_count()
    with old_objects_aside():
        assert gc.get_freeze_count() <= before
        assert not any(x is mine for x in gc.get_objects())
    assert gc.get_freeze_count() <= before
    assert not any(x is mine for x in gc.get_objects())

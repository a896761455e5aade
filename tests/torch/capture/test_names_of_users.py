"""The names and formats that users write down are the ones that the package has."""

from __future__ import annotations

import rekindle
from rekindle.model import formats


def test_every_public_name_is_found() -> None:
    for name in rekindle.__all__:
        assert getattr(rekindle, name) is not None, name
    assert callable(rekindle.plan)
    assert callable(rekindle.simulate)
    assert callable(rekindle.verify)


def test_the_formats_are_named_as_in_files_that_users_have() -> None:
    assert (formats.GRAPH, formats.SCHEDULE, formats.PLAN) == (
        "rekindle.graph/1",
        "rekindle.schedule/1",
        "rekindle.plan/1",
    )

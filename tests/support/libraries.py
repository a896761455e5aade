"""Skips for tests that need a library which not every machine has."""

import importlib
from importlib.util import find_spec

import pytest


def needs_torchvision() -> None:
    """Skips the test where torchvision or pillow is not installed. One that is and cannot be imported is a failure."""
    for name in ("PIL", "torchvision"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    importlib.import_module("torchvision")

"""What tests need that not every machine has."""

from importlib.util import find_spec

import pytest

from rekindle.zoo.torchvision_shim import import_torchvision


def needs_torchvision() -> None:
    """Skips the test where torchvision or pillow is not installed. One that is and cannot be imported is a failure."""
    for name in ("PIL", "torchvision"):
        if find_spec(name) is None:
            pytest.skip(f"{name} is not installed")
    import_torchvision()

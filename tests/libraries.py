"""What tests need that not every machine has."""

import pytest

from rekindle.errors import RekindleError
from rekindle.zoo.torchvision_shim import import_torchvision


def needs_torchvision() -> None:
    """Skips the test where torchvision, or a package that it imports, is not installed."""
    pytest.importorskip("PIL")
    try:
        import_torchvision()
    except RekindleError as e:
        pytest.skip(str(e))

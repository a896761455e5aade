"""Tiny models of timm and transformers by name, built from configuration: no downloads, no weights, nobody tuned for them."""

from __future__ import annotations

import configurations_of_timm  # noqa: F401

# each enters its configurations, in this order
import configurations_of_transformers  # noqa: F401
import configurations_that_decide  # noqa: F401
from configuration_tables import CONFIGURATIONS, build

__all__ = ["CONFIGURATIONS", "build"]

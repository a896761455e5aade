"""The image models of the modern suite, as `test_modern` has the others."""

from __future__ import annotations

import pytest

from marks import few
from test_modern import IMAGES, check_half_the_activations


@pytest.mark.parametrize("name", few(IMAGES, ["vit_b16"]))
def test_half_the_activations_and_the_same_bits(name):
    check_half_the_activations(name)

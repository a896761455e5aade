"""Bytes held during the whole step: the one place where they are added to activations and taken from peaks."""

from typing import TypeVar

import numpy as np

N = TypeVar("N", int, float, np.ndarray)


class HoldsResident:
    """A step that holds `resident_bytes` from its beginning to its end: parameters, buffers, gradients, inputs."""

    resident_bytes: int

    def beside_resident(self, peak_bytes: N) -> N:
        """Bytes of a peak (a number or an array) beside those that are held during the whole step."""
        return peak_bytes - self.resident_bytes

    def with_resident(self, activation_bytes: N) -> N:
        """The peak in bytes (a number or an array) of a step that holds so many beside those that are held during all of it."""
        return activation_bytes + self.resident_bytes

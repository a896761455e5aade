"""Explains plans: where the memory goes by module, who holds the peak, and how two plans differ. Imports no torch."""

from .explanation import Explanation, explain, explain_schedule

__all__ = ["Explanation", "explain", "explain_schedule"]

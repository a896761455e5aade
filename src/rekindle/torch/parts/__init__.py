"""Measures the step around the parts of a model, divides a goal among them, and applies their plans."""

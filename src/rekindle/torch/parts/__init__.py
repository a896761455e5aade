"""Finds the parts of a model that can be captured, measures the step around them, and applies their plans."""

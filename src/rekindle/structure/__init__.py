"""Shapes found in graphs that solvers share."""

"""Compiled inner loops (numba). Each file holds the loops of one idea; callers pass `Graph.arrays`."""

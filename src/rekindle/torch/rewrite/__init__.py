"""Rewrites of captured graphs that need less memory than any schedule of the graph as it is, and the operators for them."""

"""Compiles the kernels of all solvers and keeps them on disk, so that neither the tests nor the first plan wait for them.

The same as `rekindle warm --all`. `make setup` runs this once in a fresh clone.
"""

from __future__ import annotations

from rekindle.planning.warming import warm

if __name__ == "__main__":
    print(warm(every_solver=True).sentence)

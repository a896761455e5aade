"""Benchmarks: suites of models under several methods, one row per model and method, measured in one run.

methods -> what a name means; suites, cases -> a model and the instruments; blocks, calls, checkpointing, compiled,
comparators -> what people use today; measure, row -> rows; files -> rows on disk; regress -> two files compared.
"""

from .regress import regressions
from .row import Task
from .run import run_suite, tasks
from .suites import SUITES
from .table import compare

__all__ = ["SUITES", "Task", "compare", "regressions", "run_suite", "tasks"]

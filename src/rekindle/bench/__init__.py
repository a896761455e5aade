"""Benchmarks: suites of models under several methods, one row per model and method, all measured in one run.

Read `run` first (a suite as tasks, tasks as rows), then `model_rows` (the rows of one model). `suites` says which models there
are and `methods` what a method's name means; `cases` measures a step; `row` and `files` define rows and keep them on
disk. `benchmarks/comparators/` of a checkout adds other ways to run a step.
"""

from .row import Task
from .run import run_suite, tasks
from .suites import SUITES

__all__ = ["SUITES", "Task", "run_suite", "tasks"]

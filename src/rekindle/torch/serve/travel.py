"""Planned modules that are pickled: a plan goes along as the JSON of its file, and binds at the module's first call.

So `torch.save(model)`, `multiprocessing` and Lightning's spawned processes take a planned module as they take any other. A
capture holds functions and tensors of the process that made it, and stays there.
"""

from __future__ import annotations

import functools

from ... import plan_files
from ...model.plan import Plan

WHERE = "the plan of a pickled module"


@functools.lru_cache(maxsize=64)
def from_text(text: str) -> Plan:
    """The plan, checked as the plan of a file is. Equal layers of a model have equal plans, which are read once.

    Raises
    ------
    FormatError : the text is damaged or foreign, or claims other figures than its schedule has.
    """
    return plan_files.from_text(text, WHERE)

"""Finds the parts of a model, and measures the ways to run each; `torch.parts` divides a goal among them.

`finding` finds the submodules that can be captured, `compiled_finding` the parts that torch.compile runs, and `varying` those
whose inputs depend on the data. `again` runs parts that cannot be captured again in backward. `trial_steps` measures the ways
that have no graph, `compiled_ways` those of compiled parts, which `known_ways` remembers.
"""

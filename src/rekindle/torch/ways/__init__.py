"""Finds the parts of a model, and measures the ways to run each; `torch.parts` divides a goal among them.

`finding` finds the submodules that can be captured, `compiled_finding` the parts that torch.compile runs, and `varying` those
whose inputs depend on the data. `again` runs parts that cannot be captured again in backward. `again_ways` and `compiled_ways`
measure the ways that have no graph, by `trial_steps`; `known_ways` remembers them.
"""

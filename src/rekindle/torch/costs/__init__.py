"""Seconds, FLOPs and workspace of operators, and bytes of an optimizer's state.

`node_costs` measures the operators of a graph with `clock` (on the CPU with `clock_cpu`), on tensors from `made_up`, which also
corrects shape rules. `cache` keeps measurements; `fits` gives costs to calls that were not measured, by the operator or its
class. Without a device they are estimated with `devices`. `operator_calls` describes one call, and counts a whole step.
"""

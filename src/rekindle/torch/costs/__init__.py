"""Seconds, FLOPs and workspace of operators, and bytes of an optimizer's state.

`node_costs` measures the operators of a graph with `clock` (on the CPU `clock_cpu`, on GPUs `clock_cuda`), on tensors from
`made_up`. `cache` keeps a `measurement`; `fits` gives costs to calls that were not measured, by the operator or its class.
Without a device they are estimated with `devices`. `operator_calls` describes one call, and `unknown_sizes` corrects shape
rules. `flops` counts, and `modelled` estimates a whole step.
"""

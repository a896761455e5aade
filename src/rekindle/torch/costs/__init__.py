"""Seconds, FLOPs and memory of operators and steps.

Operators of a graph: `node_costs` measures them with `clock` (on the CPU `clock_cpu`, on GPUs `clock_cuda`), on tensors from
`made_up`. A `measurement` is kept by `cache`; `fits` gives costs to calls that were not measured, by the operator or its class
(`op_classes`). Without a device they are estimated with `devices` and `flops`. `operator_calls` describes one call, and
`unknown_sizes` corrects shape rules. Whole steps: `memory` and `allocations` measure, `modelled` estimates; each is an
`instrument`. Optimizer state: `optimizers`, `optimizer_names`, `optimizer_trial`.
"""

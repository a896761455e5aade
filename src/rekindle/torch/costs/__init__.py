"""Seconds, FLOPs and memory of operators and steps.

Operators of a graph: `node_costs` measures them with `clock` (on tensors from `made_up`, kept by `cache`) or estimates
them with `devices` and `flops`; `operator_calls` describes one call, and `unknown_sizes` corrects shape rules. Whole
steps: `memory` and `allocations` measure, `modelled` estimates; each is an `instrument`. Optimizer state:
`optimizers`, `optimizer_names`, `optimizer_trial`.
"""

"""Tensors as torch gives them: in nested arguments and results, with their memory, random generators and processes.

`tree` takes arguments and results apart into tensors and a structure. `objects` takes any Python object apart. `rng` saves
random states. `sharded` and `ranks` know torch.distributed. The instruments in `op_tensors` see every operator that runs.
Start with `tree`.
"""

"""Captures one call of a module as a joint graph, and decides when the captured step is valid for a later call.

The graph: `capture` begins, `flat` is the traced function, `attempts` trace it, `joint_graph` reads the result into a
`Captured`. `in_place` and `duplicates` change it, and `normalise` lowers it to a `Graph`, with `lowered`,
`node_tensors`, `phases` and `storages`.

Eager's numbers: `eager_kernels`, `eager_strides`, `tensor_iterator`, `hidden_writes`, `random_in_place`, `compiling_flag`.
Properties of single ops: `rules`, `overwrites`; `own_ops` defines operators of this package.

The call: `tree` takes arguments and results apart, `left_out` drops results that nobody reads, `module_call` names arguments,
`surroundings` is the process state that matters, and `determinism` asks for deterministic kernels.
`numbers`, `stand_in`, `number_places` and `same_graph` make Python numbers inputs. `known_values` answers branches on
values: `recordable` and `recorded_ops` are how a value was made, `questions` the answers that belong to a call, `random_ranges`
and `extents` what ranges of random numbers and counts of masks decide, and `tensor_memory` notices writes.

The module's state: `guards` compares it; `module_state`, `globals`, `code_reads` and `attribute_reads` find what to
compare; `values`, `identity`, `fields`, `arrays` and `watch` make keys of it.

Traces left behind: `attributes`, `side_effects`, `hooks`, `callables`, `restorable`, `containers`. Random numbers:
`rng`, `random_state`, `other_random`, `generators`. Messages: `trace_errors`, `lines_that_set`.

`private` holds the private names of torch that other rooms need.
"""

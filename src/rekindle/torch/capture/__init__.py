"""The step of a module on a sample, as one joint graph of forward and backward: module + sample → `Captured` → `Graph`.

`capture` begins, `flat` is the traced function, `attempts` trace it, `joint_graph` reads the result into a `Captured`.
`duplicates`, `shape_only` and `in_place` make it smaller, and `normalise` lowers it to a `Graph`, with `lowered`, `phases` and
`storages`. `editing` replaces ops by others, here and in `rewrite`. `eager_kernels` and `compiling_flag` make tracing take the
kernels that eager takes. `known_values` answers branches on values. `trace_errors` has the messages.
"""

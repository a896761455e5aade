"""The step of a module on a sample, as one joint graph of forward and backward: module + sample → `Captured`.

`capture` begins, `flat` is the traced function, `attempts` trace it, `joint_graph` reads the result into a `Captured`.
`eager_kernels` and `compiling_flag` make tracing take the kernels that eager takes, `attention` those of a GPU. `known_values`
answers branches on values, `later_calls` tells what calls after the first one find, `inner_results` finds results from which
forward goes on. `trace_errors` has the messages. The room `lowering` goes on from here.
"""

"""Whether a call is the one that was planned: its arguments, the module's state, and the state of the process.

`module_call` names the arguments, `guards` compares the module's state, and `surroundings` is the process state that matters.
`module_state`, `globals`, `code_reads` and `attribute_reads` find what forward reads; `values` and `watch` make keys of it.
`numbers`, `stand_in` and `number_places` know the Python numbers that change, `questions` and `recorded_ops` the values that
forward asked about. `kept` puts back what code of a model changed, with `attributes`, `tensor_state`, `restorable` and
`side_effects`. To guard a new kind of state, begin with `values`.
"""

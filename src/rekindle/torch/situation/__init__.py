"""Whether a call is the one that was planned: its arguments, the module's state, and the state of the process.

`module_call` names the arguments, `guards` compares the module's state, and `surroundings` is the process state that matters.
`globals`, `callables` and `guards.Reads` find what forward reads; `values` makes keys of it, and watches it.
`numbers` knows the Python numbers that change, `recorded_ops` the values that forward asked about. All take Python objects
apart with `tensors.objects`. To guard a new kind of state, begin there and in `values`.
"""

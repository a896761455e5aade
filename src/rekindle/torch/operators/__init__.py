"""Facts about operators: which must run once, draw random numbers or overwrite an argument, their strides, FLOPs and cuts.

`rules` has the properties that decide whether an op may run again. `overwrites`, `hidden_writes` and `random_in_place` say
what it writes, `eager_strides` and `tensor_iterator` how its result lies in memory, `flops` what it costs, `cut_rules` and
the files that it joins how it may be cut into slices, and `known_bits` which slices have the bits of the whole. `own_ops`,
`small_saves` and `pool_offsets` define operators of this package. `record` is the record of one operator; `norms` fills in
its family's. To teach Rekindle a norm, begin there, and for another operator with `rules` and `cut_rules`.
"""

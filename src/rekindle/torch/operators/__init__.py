"""Facts about operators: which must run once, draw random numbers or overwrite an argument, their strides, FLOPs and cuts.

`record` says what a record holds. One file per family fills in the records of its operators: `norms`, `convolutions`,
`products`, `pools`, `losses`, `reductions`, `indexing`, `views`, `pointwise`; the operators of this package have theirs where
they are defined (`small_saves`, `pool_offsets`, `random_in_place`). `table` joins them. To teach Rekindle an operator, add an
entry to its family.

Functions that records of several families name come from `cut_call` (cuts), `strides` and `corrected`. Other
rooms mostly ask `rules` (may it run again?), `eager_strides` and `table`; `costs.operator_calls`, `rewrite.cuts` and
`rewrite.probe` (which slices have the bits of the whole?) read the records too.
"""

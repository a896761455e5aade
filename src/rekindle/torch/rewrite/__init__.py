"""Rewrites of a captured step that need less memory than its own ops: smaller saves, and ops that run slice by slice.

`candidates` lists the rewrites that may pay: those without slices are in `unsliced`, and `finding` grows the regions that run
in slices (`region`), along the dimensions in `cuts`, by the memory that `estimate` foresees and the bits that `probe` proves.
`apply` makes the rewrites, with `slices` and `over`. `rewritten` and `family` give the traces of rewritten steps;
`planning.variants` chooses among them.
"""

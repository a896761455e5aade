"""Rewrites of a captured step that need less memory than its own ops: smaller saves, and ops that run slice by slice.

`candidates` lists the rewrites that may pay: those without slices are in `unsliced`, and `finding` grows the regions that run
in slices (`region`), along the dimensions in `cuts`, by the memory that `estimate` foresees and the bits that `probe` proves.
`rewritten` makes the rewrites, with `slices`, and the traces of rewritten steps, of which `family` gives the graphs to
`planning.variants`, which chooses among them.
"""

"""From a captured step to the graph that planners see: `Captured` → `Captured` → `Graph`.

`duplicates`, `shape_only` and `writes` make the step need less memory. `editing` is what `shape_only` and the rewrites of
`rewrite` edit with. `resize` makes the step of other sizes. `normalise` lowers a step to a `Graph`; it asks `phases` which ops
are forward and `storages` which tensors share memory. `lowered` holds the result, and `gradient_additions` finds where
gradients add up.
"""

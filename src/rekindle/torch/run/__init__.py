"""A schedule as a program inside autograd.

`halves` cuts a schedule into forward and backward, `source` writes both as Python with the help of `expressions`, `program`
compiles them, and `execute` runs them as one autograd Function per stage of backward (`stages`); `step` is one call in
progress. `bound` ties a program to its module. `second` runs forward again for derivatives of derivatives, `results` and
`shared_casts` keep sums of gradients in eager's order, `own_forward` puts objects in place of a module's forward, and `sample`
copies the tensors of a call.
"""

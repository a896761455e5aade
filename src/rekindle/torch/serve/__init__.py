"""Which plan serves a call of a planned module, and what happens to a call that none serves.

`planned` is the forward of a planned module. `bound_plans` chooses among its plans, `replanner` makes one for a new call,
`lengths` makes one from the steps of other lengths, `loaded_plan` waits for the call that a plan file fits, and `refusals`
remembers calls that run plain. `verify` compares a planned step with a plain one, and `confirm` holds a plan to its budget.
"""

"""A step that runs to be looked at: its numbers, its peak, and whether they are the plain step's. The model is put back.

`measured_step` runs one step, `comparison` compares two, and `trial` tries a plan that was made in the middle of a run.
`memory` measures peaks.
"""

"""The code of parts that run through torch.compile: stages of a forward, and what each saves for backward.

`whole_graph` traces a forward and `cuts` cuts it into stages (`stage`, `stage_kinds`). `saving` says what a way saves,
`sliced_loss` runs a loss in slices, `unread` leaves results out. `compiler` has the private names of torch.compile.
"""

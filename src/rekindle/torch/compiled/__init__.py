"""The code of parts that run through torch.compile: stages of a forward, and what each saves for backward.

`whole_graph` traces a forward, without results that nobody reads, and `cuts` cuts it into stages (`stage`). `saving` says what
a way saves, `sliced_loss` runs a loss in slices. `compiler` has the private names of torch.compile.
"""

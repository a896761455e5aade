"""The memory of one plain training step, on fake tensors: no GPU, and no weights in memory.

`verbs` is `rekindle.estimate`: `eager_step` steps a `twin` of the model, `watch` follows its storages, and `kernel_memory` runs
the few kernels that could set the peak. `largest` is `rekindle.largest_batch`, which also plans one batch after another
(`planned_batches`).
"""

"""The memory of one plain training step, on fake tensors: no GPU, and no weights in memory."""

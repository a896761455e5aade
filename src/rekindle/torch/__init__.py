"""Everything that knows PyTorch. `capture`, `eager` and `known` alone touch its private surface."""

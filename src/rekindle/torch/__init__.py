"""Everything that knows PyTorch. `capture` is the only file that touches its private surface."""

"""Everything that knows PyTorch. `private` and `compiled.compiler` alone import private names."""

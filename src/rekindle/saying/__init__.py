"""How the package speaks while it works: warnings, progress, lines of the user, bytes and shares as people write them."""

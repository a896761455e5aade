"""The command line `rekindle`; `app` has its entry point `main`."""

from .app import main

__all__ = ["main"]

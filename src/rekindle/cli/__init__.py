"""The command line: `rekindle demo | plan | frontier | solve | bench | solvers`. See `app`."""

from .app import main

__all__ = ["main"]

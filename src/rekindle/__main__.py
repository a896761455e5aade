"""Runs the command line for `python -m rekindle`."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())

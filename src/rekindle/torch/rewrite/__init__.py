"""Rewrites of a captured step that need less memory than its own ops: smaller saves, and ops that run slice by slice."""

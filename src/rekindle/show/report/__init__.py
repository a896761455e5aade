"""The HTML report of a plan: one file, without network and without torch."""

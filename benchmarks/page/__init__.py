"""The benchmark page: docs/benchmarks.md and its pictures, every figure in them from rows of `rekindle bench`.

`rows` reads rows into one pandas table; each other file makes one part of the page from that table, and `page` joins the parts.
"""

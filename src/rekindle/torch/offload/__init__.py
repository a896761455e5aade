"""Copies to the host and back while a step runs.

`away` has the engines that copy, the host memory that they copy to, and the values of a planned step that are on the host.
`part_copies` copies what calls of parts save, whatever runs them.
"""

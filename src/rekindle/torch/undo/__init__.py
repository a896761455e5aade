"""Puts back what code of a model changed: tensors, attributes, and the Python objects that forward reaches.

`kept` puts back all of it, with `attributes`, `tensor_state`, `restorable` and `side_effects`; the last one also names
side effects of forward. `tensors.objects` takes Python objects apart.
"""

"""Rewriting a captured step: ops cut into slices along one dimension of their tensors."""

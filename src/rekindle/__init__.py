"""Rekindle: train PyTorch models inside a memory budget."""

"""Estimates of a training step's memory: figures, sentences, and the search for the largest batch. No torch."""

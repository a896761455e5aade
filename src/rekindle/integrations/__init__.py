"""Rekindle inside training frameworks. Each module imports its framework, so none is imported here."""

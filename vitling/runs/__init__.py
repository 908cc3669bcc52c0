"""The run directory, and the one way to open a model."""

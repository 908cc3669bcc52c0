"""Comparisons of recipes over seeds and data sizes."""

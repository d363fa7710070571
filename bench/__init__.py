"""Measurements: each command prints its figures and their ratio to a floor of the same run."""

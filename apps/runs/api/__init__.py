"""Runs over the API."""

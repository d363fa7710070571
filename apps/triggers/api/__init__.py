"""Triggers over the API."""

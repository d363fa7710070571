"""Approvals over HTTP; no rules."""

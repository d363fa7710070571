"""What tests of approvals share."""

from __future__ import annotations

from tests.approvals.kit import ready

__all__ = ["ready"]

"""What each person said about a request; the last needed vote is its decision (docs/approvals.md)."""

from __future__ import annotations

from django.db import models

from apps.approvals.models.request import ApprovalRequest
from apps.core import fields
from apps.projects.models import Project


class ApprovalVote(models.Model):
    """One person's word about one request, once. `decision_id` is global, as that of decisions is."""

    id = fields.IdField()
    request = models.ForeignKey(
        ApprovalRequest, on_delete=models.PROTECT, related_name="votes", db_index=False
    )
    project = models.ForeignKey(Project, on_delete=models.PROTECT, related_name="+", db_index=False)
    voter_type = models.CharField(max_length=32, default="user")
    voter_id = models.CharField(max_length=255)
    decision = models.CharField(max_length=16, choices=ApprovalRequest.Verdict)
    reason_code = models.CharField(max_length=64)
    decision_id = models.CharField(max_length=64)
    voted_at = models.DateTimeField()

    class Meta:
        db_table = "approval_votes"
        constraints = [
            models.UniqueConstraint(
                fields=["request", "voter_type", "voter_id"], name="approval_vote_voter_uidx"
            ),
            models.UniqueConstraint(fields=["decision_id"], name="approval_vote_decision_uidx"),
            fields.one_of("voter_type", ["user"], "approval_vote_voter_check"),
            fields.one_of("decision", ["approved", "rejected"], "approval_vote_value_check"),
        ]

    def __str__(self) -> str:
        return f"{self.request_id} {self.voter_id} {self.decision}"

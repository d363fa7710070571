"""Tables of the ground floor: rings of the doorbell and the control jobs."""

from __future__ import annotations

from django.db import models

from apps.core import leases


class Wakeup(models.Model):
    """The newest ring of a cluster; `answered` once a session is there."""

    cluster = models.CharField(primary_key=True, max_length=32)
    rung_at = models.DateTimeField()
    unanswered_since = models.DateTimeField(null=True)
    answered = models.BooleanField(default=False)

    def __str__(self) -> str:
        return self.cluster


class ControlJob(leases.Lease):
    """A short repeated job: when it is due, where it stopped, and who is at it. One flight at a time."""

    name = models.CharField(primary_key=True, max_length=64)
    due_at = models.DateTimeField()
    cursor = models.JSONField(default=dict)
    last_started_at = models.DateTimeField(null=True)
    last_finished_at = models.DateTimeField(null=True)
    failures = models.PositiveIntegerField(default=0)

    class Meta:
        constraints = [leases.consistent("control_job_lease_consistent")]

    def __str__(self) -> str:
        return self.name

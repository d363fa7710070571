from django.db import migrations

from apps.core.immutable import Freeze

ACTION = ["permission", "action_type", "action_ref", "action_digest", "preview_digest"]
DECISION = [
    "decision_id", "decision", "decision_reason_code", "decided_by_type", "decided_by_id", "decided_at",
]
CONSUMPTION = ["consumption_id", "dispatch_id", "consumed_by_type", "consumed_by_id", "consumed_at"]


class Migration(migrations.Migration):
    dependencies = [("approvals", "0001_initial")]

    operations = [
        # With the state tuple a decision can be taken once, and an approval used once, whoever writes.
        Freeze(
            "approval_requests",
            keep=True,
            only=[
                "id", "project_id", *ACTION, "risk", "requested_by_type", "requested_by_id", "requested_at",
                "expires_at", "longest_life_ms",
            ],
            once=[*DECISION, *CONSUMPTION],
            closed="consumed_at",
        ),
        Freeze("approval_lapses", keep=True),
        Freeze("approved_action_plans", keep=True),
        Freeze("approved_action_dispatches", keep=True),
        # The barrier is never cleared, and an end is an end.
        Freeze(
            "approved_action_executions",
            only=["dispatch_id", "project_id", "max_attempts", "created_at"],
            once=["started_at"],
            closed="completed_at",
        ),
        Freeze(
            "approved_action_recovery_controls",
            only=["dispatch_id", "project_id", "created_at"],
            closed="resolution_mutation_id",
        ),
        Freeze("approved_action_recovery_resolutions", keep=True),
        Freeze("approved_action_recovery_authorizations", keep=True),
        Freeze("approved_run_receipts", keep=True),
    ]

from django.db import migrations

from apps.core.immutable import Freeze, Guard

ACTION = ["permission", "action_type", "action_ref", "action_digest", "preview_digest"]
DECISION = [
    "decision_id", "decision", "decision_reason_code", "decided_by_type", "decided_by_id", "decided_at",
]
CONSUMPTION = ["consumption_id", "dispatch_id", "consumed_by_type", "consumed_by_id", "consumed_at"]
VOTER = (
    "EXISTS (SELECT 1 FROM approval_requests r WHERE r.id = NEW.request_id AND r.project_id = NEW.project_id "
    "AND r.state = 'pending' "
    "AND NOT (r.requested_by_type = NEW.voter_type AND r.requested_by_id = NEW.voter_id))"
)
# One person's word is enough only where no more was asked for when the request was filed.
ENOUGH = (
    "NEW.quorum = 1 OR NEW.state <> 'approved' OR OLD.state = 'approved' OR (SELECT COUNT(*) FROM approval_votes v "
    "WHERE v.request_id = NEW.id AND v.decision = 'approved') >= NEW.quorum"
)


class Migration(migrations.Migration):
    dependencies = [("approvals", "0001_initial")]

    operations = [
        # With the state tuple a decision can be taken once, and an approval used once, whoever writes.
        Freeze(
            "approval_requests",
            keep=True,
            only=[
                "id", "project_id", *ACTION, "risk", "requested_by_type", "requested_by_id", "requested_at",
                "expires_at", "longest_life_ms", "quorum",
            ],
            once=[*DECISION, *CONSUMPTION],
            closed="consumed_at",
        ),
        Guard("approval_requests", "insert", "NEW.quorum = 1 OR NEW.state = 'pending'"),
        Guard("approval_requests", "update", ENOUGH, name="approval_requests_quorum"),
        Freeze("approval_votes", keep=True),
        Guard("approval_votes", "insert", VOTER),
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

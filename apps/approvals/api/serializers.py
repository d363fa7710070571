"""How approvals look from outside."""

from __future__ import annotations

from typing import Any

from rest_framework import serializers

from apps.access.endpoints import ActorSerializer, MomentField, ReferenceSerializer, StrictSerializer
from apps.approvals import plans, values
from apps.approvals.models import ApprovedActionPlan
from apps.approvals.queries import STATES, STATUSES, Seen
from apps.approvals.services.filing import RUN_CREATE
from apps.approvals.voting import Tally
from apps.runs.api.serializers import StartSerializer


class FileSerializer(StartSerializer):
    """What starting the task would be sent with, and the request itself. The same `id` and body find the first one."""

    id = serializers.CharField(max_length=64)
    action_type = serializers.ChoiceField(choices=[RUN_CREATE], required=False)
    task = serializers.CharField(max_length=64)
    risk = serializers.ChoiceField(choices=values.RISKS, required=False)
    expires_in_ms = serializers.IntegerField(min_value=1, required=False)


class DecisionSerializer(StrictSerializer):
    """What somebody decided; the same `decision_id` finds the same decision."""

    decision = serializers.ChoiceField(choices=values.VERDICTS)
    reason_code = serializers.CharField(max_length=64)
    expected_version = serializers.IntegerField(min_value=1, max_value=3)
    decision_id = serializers.CharField(max_length=64)


class ActionSerializer(StrictSerializer):
    """What is approved, bound by digests."""

    permission = serializers.CharField()
    action_type = serializers.CharField()
    action_ref = serializers.CharField()
    action_digest = serializers.CharField()
    preview_digest = serializers.CharField()


class MadeDecisionSerializer(StrictSerializer):
    """Who decided what, when, and why."""

    decision_id = serializers.CharField()
    decision = serializers.ChoiceField(choices=values.VERDICTS)
    reason_code = serializers.CharField()
    decided_by = ActorSerializer()
    decided_at = MomentField()


class VoteSerializer(StrictSerializer):
    """What one person said; `counts` is false where they could not decide any more."""

    voter = ActorSerializer()
    decision = serializers.ChoiceField(choices=values.VERDICTS)
    reason_code = serializers.CharField()
    decision_id = serializers.CharField()
    voted_at = MomentField()
    counts = serializers.BooleanField()


class ConsumptionSerializer(StrictSerializer):
    """That the approval was used, once."""

    dispatch_id = serializers.CharField()
    consumed_by = ActorSerializer()
    consumed_at = MomentField()


class ApprovalSerializer(StrictSerializer):
    """A request. `status` is `state` as it stands now: an open one may be `expired`, or `void` for `reason`."""

    id = serializers.CharField()
    project = ReferenceSerializer()
    state = serializers.ChoiceField(choices=STATES)
    status = serializers.ChoiceField(choices=STATUSES)
    reason = serializers.CharField(allow_null=True)
    version = serializers.IntegerField()
    action = ActionSerializer()
    risk = serializers.ChoiceField(choices=values.RISKS)
    requested_by = ActorSerializer()
    requested_at = MomentField()
    expires_at = MomentField()
    votes_given = serializers.IntegerField(help_text="How many approvals count by now.")
    votes_needed = serializers.IntegerField(help_text="How many it takes; one rejection rejects.")
    decision = MadeDecisionSerializer(allow_null=True)
    consumption = ConsumptionSerializer(allow_null=True)


class OneApprovalSerializer(ApprovalSerializer):
    """A request with its preview; `input` and `args` only for who asked and for those who may decide, else null."""

    votes = VoteSerializer(many=True)
    preview = serializers.DictField(allow_null=True)
    input = serializers.DictField(allow_null=True)
    args = serializers.ListField(child=serializers.CharField(), allow_null=True)


def represent(seen: Seen, tally: Tally) -> dict[str, Any]:
    """A request as lists show it."""
    return dict(ApprovalSerializer(_document(seen, tally)).data)


def represent_one(
    seen: Seen, plan: ApprovedActionPlan | None, tally: Tally, *, given: bool
) -> dict[str, Any]:
    """A request as its own page shows it."""
    known = plans.given_of(plan) if plan is not None and given else None
    more = {
        "votes": [
            {
                "voter": {"type": "user", "id": vote.voter_id},
                "decision": vote.decision,
                "reason_code": vote.reason_code,
                "decision_id": vote.decision_id,
                "voted_at": vote.voted_at,
                "counts": vote.counts,
            }
            for vote in tally.votes
        ],
        "preview": plans.preview_of(plan) if plan is not None else None,
        "input": known.input if known else None,
        "args": list(known.args) if known else None,
    }
    return dict(OneApprovalSerializer({**_document(seen, tally), **more}).data)


def _document(seen: Seen, tally: Tally) -> dict[str, Any]:
    row = seen.request
    decision = consumption = None
    if row.decision_id is not None:
        decision = {
            "decision_id": row.decision_id,
            "decision": row.decision,
            "reason_code": row.decision_reason_code,
            "decided_by": {"type": row.decided_by_type, "id": row.decided_by_id},
            "decided_at": row.decided_at,
        }
    if row.consumption_id is not None:
        consumption = {
            "dispatch_id": row.dispatch_id,
            "consumed_by": {"type": row.consumed_by_type, "id": row.consumed_by_id},
            "consumed_at": row.consumed_at,
        }
    return {
        "id": row.pk,
        "project": {"id": row.project.pk, "slug": row.project.slug},
        "state": row.state,
        "status": seen.status,
        "reason": seen.reason,
        "version": row.version,
        "action": {
            "permission": row.permission,
            "action_type": row.action_type,
            "action_ref": row.action_ref,
            "action_digest": row.action_digest,
            "preview_digest": row.preview_digest,
        },
        "risk": row.risk,
        "requested_by": {"type": row.requested_by_type, "id": row.requested_by_id},
        "requested_at": row.requested_at,
        "expires_at": row.expires_at,
        "votes_given": tally.given,
        "votes_needed": tally.needed,
        "decision": decision,
        "consumption": consumption,
    }

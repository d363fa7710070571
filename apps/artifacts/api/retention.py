"""What a project or a task keeps, what a rule would remove, and the bills of what it removed."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    IF_MATCH,
    PAGE_PARAMETERS,
    MomentField,
    ProjectEndpoint,
    StrictSerializer,
    describe,
    etag,
    if_match,
    page_of,
    page_response,
    paged,
    read_body,
    read_changes,
)
from apps.artifacts.models import Removal, RetentionReceipt, RetentionRule
from apps.artifacts.retention import listing, queries, rules
from apps.artifacts.retention.preview import preview
from apps.artifacts.retention.rules import BOUNDS, NAMES, Limits
from apps.tasks import queries as tasks


def _bounded(name: str, text: str) -> serializers.IntegerField:
    least, most = BOUNDS[name]
    return serializers.IntegerField(
        min_value=least, max_value=most, allow_null=True, required=False, help_text=text
    )


class LimitsSerializer(StrictSerializer):
    """What is kept; null takes what stands above: task, project, instance."""

    keep_ms = _bounded("keep_ms", "How long a log stays after its attempt ended.")
    keep_most = _bounded("keep_most", "At most so many of the newest logs of this project or task.")
    keep_bytes = _bounded("keep_bytes", "At most so many bytes of logs of this project or task.")
    keep_least = _bounded("keep_least", "So many of a task's newest logs stay whatever else holds.")


class RetentionHoldingSerializer(StrictSerializer):
    """What holds for something after all rules, without limits by count and bytes."""

    keep_ms = serializers.IntegerField()
    keep_least = serializers.IntegerField()
    pressure_ms = serializers.IntegerField(help_text="Instead of `keep_ms` while the disk is short.")
    history_ms = serializers.IntegerField(help_text="After that a run's attempts and events fold.")


class RetentionUsageSerializer(StrictSerializer):
    """Logs that lie on the disk."""

    logs = serializers.IntegerField()
    bytes = serializers.IntegerField()


class RetentionSerializer(LimitsSerializer):
    """A rule, what holds by it and what there is; version 0 where nobody set one."""

    version = serializers.IntegerField(read_only=True)
    effective = RetentionHoldingSerializer(read_only=True)
    usage = RetentionUsageSerializer(read_only=True)
    updated_at = MomentField(read_only=True, allow_null=True)


class PreviewWishSerializer(LimitsSerializer):
    """A rule to try, in place of the stored one; without any field the stored one. `task` narrows it to one task."""

    task = serializers.CharField(required=False, allow_null=True, max_length=128)


class RetentionPreviewSerializer(StrictSerializer):
    """What would go if the rule were applied now. Where `bounded`, it is at least so much."""

    runs = serializers.IntegerField()
    logs = serializers.IntegerField()
    files = serializers.IntegerField()
    bytes = serializers.IntegerField()
    by_rule = serializers.DictField(child=serializers.IntegerField())
    oldest_kept_at = MomentField(allow_null=True)
    kept_logs = serializers.IntegerField()
    kept_bytes = serializers.IntegerField()
    bounded = serializers.BooleanField()


class RetentionReceiptSerializer(StrictSerializer):
    """The bill of one day (UTC) and rule: `items` are logs, for `history` runs, for `skips` records."""

    day = serializers.DateField()
    rule = serializers.ChoiceField(choices=Removal.values)
    items = serializers.IntegerField()
    files = serializers.IntegerField(help_text="Files; rows of the database for `history`.")
    bytes = serializers.IntegerField()
    oldest_at = MomentField()
    newest_at = MomentField()


def represent(rule: RetentionRule) -> dict[str, Any]:
    """A rule as the API shows it: three queries."""
    holding = rules.holding(rule.project_id, rule.task_id)
    return dict(
        RetentionSerializer(
            {
                **{name: getattr(rule, name) for name in NAMES},
                "version": rule.version,
                "effective": holding,
                "usage": listing.usage(rule.project_id, rule.task_id),
                "updated_at": rule.updated_at if rule.version else None,
            }
        ).data
    )


class ProjectRetention(ProjectEndpoint):
    permissions = {"GET": "project.read", "PATCH": "project.manage"}

    def task_id(self, **kwargs: Any) -> UUID | None:
        """The task of the route; None for the project's own rule."""
        return None

    @describe(summary="Read what is kept", responses=RetentionSerializer)
    def get(self, request: Request, **kwargs: Any) -> Response:
        rule = rules.find(self.project_id, self.task_id(**kwargs))
        return etag(Response(represent(rule)), rule.version)

    @describe(
        summary="Change what is kept",
        description="A preview says beforehand what would go. A rule that nobody set is at version 0.",
        parameters=[IF_MATCH],
        request=RetentionSerializer,
        responses=RetentionSerializer,
    )
    def patch(self, request: Request, **kwargs: Any) -> Response:
        version = if_match(request)
        task_id = self.task_id(**kwargs)
        rule = rules.find(self.project_id, task_id)
        changes = read_changes(RetentionSerializer, request.data, represent(rule))
        stored = {name: getattr(rule, name) for name in NAMES}
        rule = rules.change(self.grant, version, rules.check({**stored, **changes}), task_id)
        return etag(Response(represent(rule)), rule.version)


class TaskRetention(ProjectRetention):
    def task_id(self, **kwargs: Any) -> UUID | None:
        task_id: UUID = tasks.find(self.project_id, kwargs["t"]).pk
        return task_id


class PreviewRetention(ProjectEndpoint):
    permissions = {"POST": "project.manage"}

    @describe(
        summary="See what a rule would remove now",
        description="Nothing is changed. Looks at 20,000 logs at most and says where it had to stop.",
        request=PreviewWishSerializer,
        responses=RetentionPreviewSerializer,
    )
    def post(self, request: Request, p: str) -> Response:
        values = read_body(PreviewWishSerializer, request.data or {})
        reference = values.pop("task", None)
        task_id = tasks.find(self.project_id, reference).pk if reference else None
        wanted: Limits | None = None
        if values:
            rule = rules.find(self.project_id, task_id)
            wanted = rules.check({**{name: getattr(rule, name) for name in NAMES}, **values})
        return Response(RetentionPreviewSerializer(preview(self.grant, wanted, task_id)).data)


class Receipts(ProjectEndpoint):
    permissions = {"GET": "project.read"}

    @describe(
        summary="List what retention removed, the newest day first",
        parameters=PAGE_PARAMETERS,
        responses=paged(RetentionReceiptSerializer),
    )
    def get(self, request: Request, p: str) -> Response:
        return page_response(queries.receipts(self.project_id, **page_of(request)), _receipt)


def _receipt(row: RetentionReceipt) -> Any:
    return RetentionReceiptSerializer(row).data

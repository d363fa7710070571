"""Tasks and their revisions over the API (api.md, "Task"). The rules of each field live in `validation`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from django.urls import path
from django.utils.translation import gettext_lazy as _
from drf_spectacular.utils import OpenApiParameter, extend_schema, extend_schema_field
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    IF_MATCH,
    PAGE_PARAMETERS,
    ActorSerializer,
    MomentField,
    ProjectEndpoint,
    ReferenceSerializer,
    StrictSerializer,
    etag,
    if_match,
    page_of,
    paged,
)
from apps.access.parsers import StrictJSONParser
from apps.core import ids
from apps.core.errors import InvalidInput
from apps.tasks import limits, placement, queries, retry, services, validation
from apps.tasks.documents import RevisionView, TaskView
from apps.tasks.execution import DEFAULT_GRACE_MS, DEFAULT_LOG_QUOTA, LANGUAGES
from apps.tasks.models import MAX_PARALLEL, Task
from apps.tasks.services import TaskDraft
from apps.tasks.validation import MAX_TIMEOUT_MS
from apps.triggers import services as triggers


class ScriptSerializer(StrictSerializer):
    """A source file for an interpreter."""

    language = serializers.ChoiceField(LANGUAGES)
    source = serializers.CharField(trim_whitespace=False)  # type: ignore[assignment]
    args = serializers.ListField(child=serializers.CharField(allow_blank=True), required=False)


class RequiresSerializer(StrictSerializer):
    """Only a worker that has all these labels, each with this value, carries the runs."""

    labels = serializers.DictField(
        child=serializers.CharField(max_length=placement.MAX_VALUE, allow_blank=True), required=False
    )


class LimitsSerializer(StrictSerializer):
    """What a run's processes may use; null is no limit. What a node cannot keep is said at the head of the log.

    `cpu_seconds` is of each process. `cpu_percent` (100 = one processor), `memory_bytes` and `processes` are of all of
    a run's together where the node has control groups. Elsewhere `memory_bytes` is of each process, and `processes`
    of all scripts of one OS user.
    """

    def get_fields(self) -> dict[str, serializers.Field[Any, Any, Any, Any]]:
        return {
            name: serializers.IntegerField(
                min_value=least, max_value=most, allow_null=True, required=False, default=None
            )
            for name, (least, most) in limits.BOUNDS.items()
        }


@extend_schema_field(
    {
        "oneOf": [
            {"type": "string"},
            {
                "type": "object",
                "properties": {"secret": {"type": "string"}, "as": {"enum": ["env", "file"]}},
                "required": ["secret", "as"],
                "additionalProperties": False,
            },
        ]
    }
)
class SecretUseField(serializers.JSONField):
    """A secret by its name: its value in the variable, or with `as: file` in a file that NAME_FILE names."""


class ExecutionSerializer(StrictSerializer):
    """What a revision holds. Exactly one of `command`, `shell` and `script` is not null."""

    command = serializers.ListField(
        child=serializers.CharField(allow_blank=True), allow_null=True, required=False, min_length=1
    )
    shell = serializers.CharField(allow_null=True, required=False, trim_whitespace=False)
    script = ScriptSerializer(allow_null=True, required=False)
    work_dir = serializers.CharField(allow_null=True, required=False)
    env = serializers.DictField(child=serializers.CharField(allow_blank=True), required=False)
    secrets = serializers.DictField(
        child=SecretUseField(),
        required=False,
        help_text="Variables whose values are secrets: the name, or an object with `secret` and `as`.",
    )
    before = serializers.CharField(allow_null=True, required=False)
    after = serializers.CharField(allow_null=True, required=False)
    timeout_ms = serializers.IntegerField(
        min_value=1_000, max_value=MAX_TIMEOUT_MS, allow_null=True, required=False
    )
    kill_grace_ms = serializers.IntegerField(
        min_value=0, max_value=600_000, required=False, default=DEFAULT_GRACE_MS
    )
    log_quota_bytes = serializers.IntegerField(
        min_value=65_536, max_value=1_073_741_824, required=False, default=DEFAULT_LOG_QUOTA
    )
    requires = RequiresSerializer(required=False)
    limits = LimitsSerializer(required=False)


class RetrySerializer(StrictSerializer):
    """What is tried again by itself, `max_attempts` times in all; what is left out has its default.

    `retry_on_lost` with more than one attempt needs a `safety` other than `unknown`. `retry_on_failure` takes any
    exit code but 0, or those in `retry_exit_codes`. Stops and time limits are never tried again.
    """

    max_attempts = serializers.IntegerField(
        min_value=1, max_value=retry.MAX_ATTEMPTS, required=False, default=1
    )
    retry_on_lost = serializers.BooleanField(required=False, default=False)
    safety = serializers.ChoiceField(retry.SAFETIES, required=False, default="unknown")
    backoff_base_ms = serializers.IntegerField(
        min_value=0, max_value=retry.MAX_BACKOFF_MS, required=False, default=0
    )
    backoff_max_ms = serializers.IntegerField(
        min_value=0, max_value=retry.MAX_BACKOFF_MS, required=False, default=0
    )
    retry_on_failure = serializers.BooleanField(required=False, default=False)
    retry_exit_codes = serializers.ListField(
        child=serializers.IntegerField(min_value=1, max_value=255),
        required=False,
        max_length=retry.MAX_EXIT_CODES,
    )


class TaskSerializer(ExecutionSerializer):
    """A task. In a PATCH null is the default of a field, and read-only fields may stay as they are."""

    id = serializers.UUIDField(read_only=True)
    project = ReferenceSerializer(read_only=True)
    slug = serializers.CharField(max_length=64, required=False)
    name = serializers.CharField(max_length=255)
    description = serializers.CharField(
        max_length=validation.MAX_DESCRIPTION, required=False, allow_blank=True
    )
    enabled = serializers.BooleanField(required=False)
    archived_at = MomentField(read_only=True, allow_null=True)
    executor = serializers.CharField(read_only=True)
    concurrency = serializers.ChoiceField(Task.Concurrency.values, required=False)
    max_parallel = serializers.IntegerField(min_value=1, max_value=MAX_PARALLEL, required=False)
    priority = serializers.IntegerField(min_value=-1_000, max_value=1_000, required=False)
    retry = RetrySerializer(required=False)
    labels = serializers.ListField(child=serializers.CharField(max_length=64), required=False)
    pinned = serializers.BooleanField(required=False)
    requires_approval = serializers.BooleanField(
        required=False,
        help_text="Whether nobody starts it alone. Set here; taken back under `…/requires-approval` only.",
    )
    revision = serializers.CharField(read_only=True)
    version = serializers.IntegerField(read_only=True)
    created_at = MomentField(read_only=True)
    updated_at = MomentField(read_only=True)


class RevisionSerializer(ExecutionSerializer):
    """What a run of this revision executes."""

    revision = serializers.CharField()
    task = ReferenceSerializer()
    executor = serializers.CharField()
    created_at = MomentField()
    created_by = ActorSerializer()


class TaskParser(StrictJSONParser):
    """Every text of a task has a rule that names its field (lessons D15)."""

    checks_text = False


FILTERS = [
    OpenApiParameter("search", str, description="Text in name or short name."),
    OpenApiParameter("label", str, description="Only with this label."),
    OpenApiParameter("enabled", bool, description="Only enabled, or only disabled ones."),
    OpenApiParameter("archived", bool, description="Archived ones instead of the others."),
]


class Tasks(ProjectEndpoint):
    """The tasks of a project."""

    permissions = {"GET": "task.read", "POST": "task.create"}
    parser_classes = (TaskParser,)

    @extend_schema(
        summary="List tasks", parameters=[*PAGE_PARAMETERS, *FILTERS], responses=paged(TaskSerializer)
    )
    def get(self, request: Request, p: str) -> Response:
        page = queries.page(self.project_id, _filters(request), **page_of(request, *_FILTERS))
        return _page(queries.views(page.items), page.next_cursor)

    @extend_schema(summary="Make a task", request=TaskSerializer, responses={201: TaskSerializer})
    def post(self, request: Request, p: str) -> Response:
        task = services.create_task(self.grant, TaskDraft.from_json(request.data))
        return _answer(queries.view(task), status=201)


class OneTask(ProjectEndpoint):
    """A task: what it runs, and how."""

    permissions = {"GET": "task.read", "PATCH": "task.update", "DELETE": "task.delete"}
    parser_classes = (TaskParser,)

    @extend_schema(summary="Show a task", responses=TaskSerializer)
    def get(self, request: Request, p: str, t: str) -> Response:
        return _answer(queries.view(queries.find(self.project_id, t)))

    @extend_schema(
        summary="Change a task",
        parameters=[IF_MATCH],
        request=TaskSerializer(partial=True),
        responses=TaskSerializer,
    )
    def patch(self, request: Request, p: str, t: str) -> Response:
        version = if_match(request)
        task = queries.find(self.project_id, t)
        if not isinstance(request.data, Mapping):
            raise InvalidInput(_("The body must be an object."))
        return _answer(queries.view(triggers.change_task(self.grant, task.pk, version, request.data)))

    @extend_schema(summary="Archive a task", parameters=[IF_MATCH], request=None, responses={204: None})
    def delete(self, request: Request, p: str, t: str) -> Response:
        version = if_match(request)
        task = queries.find(self.project_id, t)
        triggers.archive_task(self.grant, task.pk, version)
        return Response(status=204)


class ApprovalMark(ProjectEndpoint):
    """That a task needs an approval; an addition to the contract."""

    permissions = {"DELETE": "policy.manage"}
    fresh = frozenset({"DELETE"})

    @extend_schema(
        summary="Let a task be started without an approval again",
        parameters=[IF_MATCH],
        request=None,
        responses=TaskSerializer,
    )
    def delete(self, request: Request, p: str, t: str) -> Response:
        version = if_match(request)
        task = queries.find(self.project_id, t)
        return _answer(queries.view(services.clear_approval_mark(self.grant, task.pk, version)))


class Revisions(ProjectEndpoint):
    """What a task executed over time."""

    permissions = {"GET": "task.read"}

    @extend_schema(summary="List revisions", parameters=PAGE_PARAMETERS, responses=paged(RevisionSerializer))
    def get(self, request: Request, p: str, t: str) -> Response:
        task = queries.find(self.project_id, t)
        page = queries.revision_page(task, **page_of(request))
        return _page(page.items, page.next_cursor)


class OneRevision(ProjectEndpoint):
    """What a run of one revision executed."""

    permissions = {"GET": "task.read"}

    @extend_schema(summary="Show a revision", responses=RevisionSerializer)
    def get(self, request: Request, p: str, t: str, revision: str) -> Response:
        return Response(queries.revision(queries.find(self.project_id, t), revision).document())


_FILTERS = ("search", "label", "enabled", "archived")


def _filters(request: Request) -> queries.Filters:
    values = request.query_params
    return queries.Filters(
        search=_text(values.get("search"), "search"),
        label=_text(values.get("label"), "label"),
        enabled=_flag(values.get("enabled"), "enabled"),
        archived=bool(_flag(values.get("archived"), "archived")),
    )


def _text(text: str | None, name: str) -> str | None:
    if not text:
        return None
    if not ids.is_text_id(text, 255):
        raise InvalidInput.field(name, _("1 to 255 characters."))
    return text


def _flag(text: str | None, name: str) -> bool | None:
    if text in (None, ""):
        return None
    if text not in ("true", "false"):
        raise InvalidInput.field(name, _("true or false."))
    return text == "true"


def _page(views: Sequence[TaskView | RevisionView], next_cursor: str | None) -> Response:
    return Response({"items": [view.document() for view in views], "next_cursor": next_cursor})


def _answer(view: TaskView, status: int = 200) -> Response:
    return etag(Response(view.document(), status=status), view.task.version)


urlpatterns = [
    path("projects/<str:p>/tasks", Tasks.as_view()),
    path("projects/<str:p>/tasks/<str:t>", OneTask.as_view()),
    path("projects/<str:p>/tasks/<str:t>/requires-approval", ApprovalMark.as_view()),
    path("projects/<str:p>/tasks/<str:t>/revisions", Revisions.as_view()),
    path("projects/<str:p>/tasks/<str:t>/revisions/<str:revision>", OneRevision.as_view()),
]

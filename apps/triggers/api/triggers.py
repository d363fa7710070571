"""Views over the triggers of a task, and the preview of a rule."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.conf import settings
from django.urls import reverse
from django.utils.translation import gettext as _
from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    IF_MATCH,
    PAGE_PARAMETERS,
    ProjectEndpoint,
    etag,
    if_match,
    page_of,
    paged,
    read_body,
)
from apps.core.errors import InvalidInput
from apps.projects.policy import Grant
from apps.tasks import queries as tasks
from apps.tasks.models import Task
from apps.triggers import queries, services
from apps.triggers.api.serializers import (
    READ_ONLY,
    MadeTriggerSerializer,
    PreviewRequestSerializer,
    PreviewSerializer,
    TriggerSerializer,
)
from apps.triggers.drafts import TriggerDraft
from apps.triggers.errors import ScheduleInvalid
from apps.triggers.models import Trigger
from apps.triggers.schedules.preview import preview


class TriggerEndpoint(ProjectEndpoint):
    """A view of triggers; writing them takes the right to start the task as well."""

    def task(self, t: str) -> Task:
        """The task of the route."""
        return tasks.find(self.project_id, t)

    @property
    def start(self) -> Grant:
        """The grant to start tasks: what a trigger does later is decided now."""
        return self.authorize(self.project_id, "run.start")


class Triggers(TriggerEndpoint):
    permissions = {"GET": "task.read", "POST": "task.update"}

    @extend_schema(
        summary="List the triggers of a task", parameters=PAGE_PARAMETERS, responses=paged(TriggerSerializer)
    )
    def get(self, request: Request, p: str, t: str) -> Response:
        task = self.task(t)
        page = queries.page(task, **page_of(request))
        items = [queries.document(trigger, task) for trigger in page.items]
        return Response({"items": items, "next_cursor": page.next_cursor})

    @extend_schema(
        summary="Make a trigger; needs run.start too",
        request=TriggerSerializer,
        responses={201: MadeTriggerSerializer},
    )
    def post(self, request: Request, p: str, t: str) -> Response:
        start, task = self.start, self.task(t)
        made = services.create_trigger(self.grant, start, task.pk, TriggerDraft.from_json(request.data))
        return _made(made, task, status=201)


class OneTrigger(TriggerEndpoint):
    permissions = {"GET": "task.read", "PATCH": "task.update", "DELETE": "task.update"}

    @extend_schema(summary="Show a trigger", responses=TriggerSerializer)
    def get(self, request: Request, p: str, t: str, id: str) -> Response:
        task = self.task(t)
        return _answer(queries.find(task, id), task)

    @extend_schema(
        summary="Change a trigger; needs run.start too",
        parameters=[IF_MATCH],
        request=TriggerSerializer(partial=True),
        responses=TriggerSerializer,
    )
    def patch(self, request: Request, p: str, t: str, id: str) -> Response:
        version, start, task = if_match(request), self.start, self.task(t)
        trigger = queries.find(task, id)
        if not isinstance(request.data, Mapping):
            raise InvalidInput(_("The body must be an object."))
        changes = _without_read_only(request.data, queries.document(trigger, task))
        return _answer(
            services.change_trigger(self.grant, start, task.pk, trigger.pk, version, changes), task
        )

    @extend_schema(
        summary="Delete a trigger; needs run.start too",
        parameters=[IF_MATCH],
        request=None,
        responses={204: None},
    )
    def delete(self, request: Request, p: str, t: str, id: str) -> Response:
        version, start, task = if_match(request), self.start, self.task(t)
        services.delete_trigger(self.grant, start, task.pk, queries.find(task, id).pk, version)
        return Response(status=204)


class Secret(TriggerEndpoint):
    permissions = {"POST": "task.update"}

    @extend_schema(
        summary="Give a webhook a new secret; the old address is dead at once",
        parameters=[IF_MATCH],
        request=None,
        responses=MadeTriggerSerializer,
    )
    def post(self, request: Request, p: str, t: str, id: str) -> Response:
        version, start, task = if_match(request), self.start, self.task(t)
        trigger = queries.find(task, id)
        return _made(services.renew_secret(self.grant, start, task.pk, trigger.pk, version), task)


class Stranded(ProjectEndpoint):
    permissions = {"GET": "task.read"}

    @extend_schema(
        summary="List enabled triggers whose author is disabled",
        parameters=PAGE_PARAMETERS,
        responses=paged(TriggerSerializer),
    )
    def get(self, request: Request, p: str) -> Response:
        page = queries.stranded(self.project_id, **page_of(request))
        items = [queries.document(trigger, trigger.task) for trigger in page.items]
        return Response({"items": items, "next_cursor": page.next_cursor})


class SchedulePreview(ProjectEndpoint):
    """Says what a rule will do, or why and where it is not understood. Nothing is stored."""

    permissions = {"POST": "task.read"}

    @extend_schema(
        summary="Preview a schedule", request=PreviewRequestSerializer, responses=PreviewSerializer
    )
    def post(self, request: Request, p: str) -> Response:
        values = read_body(PreviewRequestSerializer, request.data)
        try:
            return Response(preview(values.pop("kind"), **values).document())
        except ScheduleInvalid as refusal:
            return Response({"valid": False, "error": {"sentence": str(refusal.sentence), **refusal.extra}})


def hook_url(secret: str) -> str:
    """The address of a webhook, with the host where one is configured."""
    path = reverse("hook", args=[secret])
    return settings.BASE_URL.removesuffix(settings.PREFIX) + path if settings.BASE_URL else path


def _without_read_only(changes: Mapping[str, Any], document: Mapping[str, Any]) -> dict[str, Any]:
    wrong = [name for name in READ_ONLY if name in changes and changes[name] != document[name]]
    if wrong:
        raise InvalidInput(fields={name: [_("This cannot be changed here.")] for name in wrong})
    return {name: value for name, value in changes.items() if name not in READ_ONLY}


def _answer(trigger: Trigger, task: Task, status: int = 200) -> Response:
    return etag(Response(queries.document(trigger, task), status=status), trigger.version)


def _made(made: services.Made, task: Task, status: int = 200) -> Response:
    answer = _answer(made.trigger, task, status)
    answer.data["url"] = None if made.secret is None else hook_url(made.secret)
    answer.data["signing_key"] = made.signing_key
    return answer

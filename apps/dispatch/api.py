"""Workers over the API, for instance administrators."""

from __future__ import annotations

from typing import Any

from django.urls import path
from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    ADMINISTRATOR,
    ORIGIN,
    PAGE_PARAMETERS,
    Endpoint,
    MomentField,
    StrictSerializer,
    page_of,
    page_response,
    paged,
)
from apps.core import clock
from apps.dispatch import queries
from apps.dispatch.errors import WorkerNotFound
from apps.dispatch.models import Worker
from apps.dispatch.services import workers


class WorkerSerializer(StrictSerializer):
    """One worker place of a node."""

    id = serializers.CharField()
    node = serializers.CharField(source="node_id")
    roles = serializers.ListField(child=serializers.CharField())
    status = serializers.ChoiceField(choices=Worker.Status.values)
    alive = serializers.BooleanField(help_text="A session of it shows itself just now.")
    slots = serializers.IntegerField(source="max_concurrent_runs")
    available_slots = serializers.IntegerField()
    labels = serializers.DictField(child=serializers.CharField())
    registered_at = MomentField()
    last_heartbeat_at = MomentField()
    drain_requested_at = MomentField(allow_null=True)


def represent(worker: Worker) -> Any:
    """A worker as the API shows it."""
    worker.alive = queries.is_alive(worker, clock.now())  # type: ignore[attr-defined]
    return WorkerSerializer(worker).data


class Workers(Endpoint):
    permissions = {"GET": ADMINISTRATOR}

    @extend_schema(summary="List workers", parameters=PAGE_PARAMETERS, responses=paged(WorkerSerializer))
    def get(self, request: Request) -> Response:
        return page_response(queries.page_workers(**page_of(request)), represent)


class _Switch(Endpoint):
    permissions = {"POST": ADMINISTRATOR}
    draining: bool

    def switch(self, worker_id: str) -> Response:
        workers.set_draining(
            self.draining, worker_id=worker_id, actor=self.principal.subject.pair, origin=ORIGIN
        )
        worker = Worker.objects.filter(pk=worker_id).first()
        if worker is None:
            raise WorkerNotFound
        return Response(represent(worker))


class DrainWorker(_Switch):
    draining = True

    @extend_schema(summary="Take no new runs; what runs goes on", request=None, responses=WorkerSerializer)
    def post(self, request: Request, id: str) -> Response:
        return self.switch(id)


class ResumeWorker(_Switch):
    draining = False

    @extend_schema(summary="Take runs again", request=None, responses=WorkerSerializer)
    def post(self, request: Request, id: str) -> Response:
        return self.switch(id)


urlpatterns = [
    path("workers", Workers.as_view()),
    path("workers/<str:id>/drain", DrainWorker.as_view()),
    path("workers/<str:id>/resume", ResumeWorker.as_view()),
]

"""Nodes and workers over the API, for instance administrators."""

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
from apps.dispatch.models import Node, Worker
from apps.dispatch.queries import NodeView
from apps.dispatch.services import draining


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


class NodeSerializer(StrictSerializer):
    """A machine of the installation with its worker places.

    `state`: `online`; `draining`, it takes nothing new and something still runs; `drained`; or, silent for two
    minutes, `off` where it had signed off and `lost` where it had not, or had runs. A node whose clock is more than
    5 s off takes no runs.
    """

    id = serializers.CharField()
    host = serializers.CharField()
    state = serializers.ChoiceField(["online", "draining", "drained", "off", "lost"])
    labels = serializers.DictField(child=serializers.CharField())
    running = serializers.IntegerField()
    drain_requested_at = MomentField(allow_null=True)
    last_heartbeat_at = MomentField()
    clock_skew_ms = serializers.IntegerField()
    workers = WorkerSerializer(many=True)


def represent_node(view: NodeView) -> Any:
    """A node as the API shows it."""
    node = view.node
    return {
        "id": node.pk,
        "host": node.host,
        "state": view.state,
        "labels": node.labels,
        "running": len(view.leases),
        "drain_requested_at": clock.rfc3339(node.drain_requested_at) if node.drain_requested_at else None,
        "last_heartbeat_at": clock.rfc3339(view.seen_at),
        "clock_skew_ms": node.clock_skew_ms,
        "workers": [represent(worker) for worker in view.workers],
    }


class Nodes(Endpoint):
    permissions = {"GET": ADMINISTRATOR}

    @extend_schema(summary="List nodes", parameters=PAGE_PARAMETERS, responses=paged(NodeSerializer))
    def get(self, request: Request) -> Response:
        return page_response(queries.page_nodes(**page_of(request)), represent_node)


class _SwitchWorker(Endpoint):
    permissions = {"POST": ADMINISTRATOR}
    draining: bool

    def switch(self, worker_id: str) -> Response:
        draining.set_worker(self.draining, worker_id, actor=self.principal.subject.pair, origin=ORIGIN)
        return Response(represent(Worker.objects.get(pk=worker_id)))


class DrainWorker(_SwitchWorker):
    draining = True

    @extend_schema(summary="Take no new runs; what runs goes on", request=None, responses=WorkerSerializer)
    def post(self, request: Request, id: str) -> Response:
        return self.switch(id)


class ResumeWorker(_SwitchWorker):
    draining = False

    @extend_schema(summary="Take runs again", request=None, responses=WorkerSerializer)
    def post(self, request: Request, id: str) -> Response:
        return self.switch(id)


class _SwitchNode(Endpoint):
    permissions = {"POST": ADMINISTRATOR}
    draining: bool

    def switch(self, node_id: str) -> Response:
        draining.set_node(self.draining, node_id, actor=self.principal.subject.pair, origin=ORIGIN)
        (view,) = queries.view_nodes([Node.objects.get(pk=node_id)])
        return Response(represent_node(view))


class DrainNode(_SwitchNode):
    draining = True

    @extend_schema(
        summary="Take no new runs on a node, until it is resumed", request=None, responses=NodeSerializer
    )
    def post(self, request: Request, id: str) -> Response:
        return self.switch(id)


class ResumeNode(_SwitchNode):
    draining = False

    @extend_schema(summary="Take runs on a node again", request=None, responses=NodeSerializer)
    def post(self, request: Request, id: str) -> Response:
        return self.switch(id)


urlpatterns = [
    path("workers", Workers.as_view()),
    path("workers/<str:id>/drain", DrainWorker.as_view()),
    path("workers/<str:id>/resume", ResumeWorker.as_view()),
    path("nodes", Nodes.as_view()),
    path("nodes/<str:id>/drain", DrainNode.as_view()),
    path("nodes/<str:id>/resume", ResumeNode.as_view()),
]

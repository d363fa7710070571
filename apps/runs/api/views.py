"""Views over runs: lists, one run, its attempts and events, start, stop, retry, skips."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from uuid import UUID

from django.utils.dateparse import parse_datetime
from drf_spectacular.utils import OpenApiParameter, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    IDEMPOTENCY_KEY,
    PAGE_PARAMETERS,
    ProjectEndpoint,
    etag,
    idempotency_key,
    only_parameters,
    page_of,
    page_response,
    paged,
    read_body,
)
from apps.access.errors import ScopeMissing
from apps.access.scopes import Credential
from apps.core import ids, pages
from apps.core.errors import InvalidInput, NotFound
from apps.dispatch import cancellations
from apps.dispatch import queries as dispatch
from apps.dispatch.services import escaped, stop_decision
from apps.projects.policy import Grant
from apps.runs import queries, services
from apps.runs.api.serializers import (
    AttemptListSerializer,
    AttemptSerializer,
    BreakGlassSerializer,
    EscapedKillSerializer,
    EventListSerializer,
    HoldListSerializer,
    HoldSerializer,
    PinSerializer,
    ResolveStopSerializer,
    RunSerializer,
    SkipSerializer,
    StartSerializer,
    StopSerializer,
    represent,
    represent_event,
    represent_hold,
    represent_skip,
)
from apps.runs.errors import ConcurrencySkipped, HistoryRetained, RunEnded
from apps.runs.models import ACTIVE_ATTEMPT, Run
from apps.runs.queries import RunFilter
from apps.runs.services import Alone, Skipped, Started, holds
from apps.tasks import queries as tasks
from apps.tasks.models import Task
from apps.triggers.queries import complete_open

SPAN = [
    OpenApiParameter("since", datetime, description="RFC 3339, included."),
    OpenApiParameter("until", datetime, description="RFC 3339, not included."),
]
_TASK = OpenApiParameter("task", str, description="Task: id or short name.")


class RunEndpoint(ProjectEndpoint):
    """A view of one run; its project follows from it."""

    def locate_project(self, **kwargs: Any) -> str:
        run_id = ids.parse_uuid(kwargs["id"])
        project_id = queries.project_of(run_id) if run_id else None
        if run_id is None or project_id is None:
            raise NotFound
        self.run_id = run_id
        return project_id

    def refuse_folded(self, found: Sequence[Any]) -> None:
        """Raises HistoryRetained where there is nothing any more; a query only where nothing was found."""
        if not found and queries.folded_at(self.run_id) is not None:
            raise HistoryRetained


class Runs(ProjectEndpoint):
    permissions = {"GET": "run.read"}

    @extend_schema(
        summary="List runs, newest first",
        parameters=[
            *PAGE_PARAMETERS,
            _TASK,
            OpenApiParameter("status", str, description="One status, or several with commas."),
            OpenApiParameter("trigger_type", str),
            *SPAN,
        ],
        responses=paged(RunSerializer),
    )
    def get(self, request: Request, p: str) -> Response:
        query = request.query_params
        statuses = tuple(item for item in query.get("status", "").split(",") if item)
        chosen = RunFilter(
            task_id=_task_filter(self.project_id, request),
            statuses=statuses,
            trigger_type=query.get("trigger_type") or None,
            since=moment(request, "since"),
            until=moment(request, "until"),
        )
        wanted = page_of(request, "task", "status", "trigger_type", "since", "until")
        page = queries.page(self.project_id, chosen, **wanted)
        return Response({"items": show(page.items), "next_cursor": page.next_cursor})


class StartRun(ProjectEndpoint):
    permissions = {"POST": "run.start"}

    @extend_schema(
        summary="Start a task",
        parameters=[IDEMPOTENCY_KEY],
        request=StartSerializer,
        responses={200: RunSerializer, 201: RunSerializer},
    )
    def post(self, request: Request, p: str, t: str) -> Response:
        values = read_body(StartSerializer, request.data)
        task = tasks.find(self.project_id, t)
        return _start(self.grant, task, values, request, _alone(self.credential, "run.start"))


class BreakGlass(ProjectEndpoint):
    """An addition to the contract."""

    permissions = {"POST": "run.start"}
    fresh = frozenset({"POST"})

    @extend_schema(
        summary="Start a task that needs an approval without one, with a written reason",
        description="Only where the project's policy lets your role. It is on record, and the dashboard shows it.",
        parameters=[IDEMPOTENCY_KEY],
        request=BreakGlassSerializer,
        responses={200: RunSerializer, 201: RunSerializer},
    )
    def post(self, request: Request, p: str, t: str) -> Response:
        values = read_body(BreakGlassSerializer, request.data)
        alone = Alone(values["reason"])
        if _alone(self.credential, "run.start") is None:
            raise ScopeMissing
        task = tasks.find(self.project_id, t)
        if not task.requires_approval:
            raise InvalidInput("The task needs no approval; start it as usual.")
        return _start(self.grant, task, values, request, alone)


class OneRun(RunEndpoint):
    permissions = {"GET": "run.read"}

    @extend_schema(summary="Read a run", responses=RunSerializer)
    def get(self, request: Request, id: str) -> Response:
        run = queries.get(self.run_id)
        return etag(Response(show([run])[0]), run.version)


class Attempts(RunEndpoint):
    permissions = {"GET": "run.read"}

    @extend_schema(summary="List the attempts of a run", responses=AttemptListSerializer)
    def get(self, request: Request, id: str) -> Response:
        found, stops = queries.attempts(self.run_id), cancellations.stops(self.run_id)
        self.refuse_folded(found)
        for attempt in found:
            attempt.stop = stops.get(attempt.pk)  # type: ignore[attr-defined]
        active = sum(attempt.status in ACTIVE_ATTEMPT for attempt in found)
        return Response({"items": AttemptSerializer(found, many=True).data, "ambiguous": active > 1})


class Events(RunEndpoint):
    permissions = {"GET": "run.read"}

    @extend_schema(
        summary="Read what happened to a run, in order",
        parameters=[
            OpenApiParameter("after", int, description="Sequence to continue behind; 0 without."),
            OpenApiParameter("limit", int, description="1 to 500; 100 without."),
        ],
        responses=EventListSerializer,
    )
    def get(self, request: Request, id: str) -> Response:
        only_parameters(request, "after", "limit")
        limit = pages.read_limit(
            request.query_params.get("limit"), default=queries.DEFAULT_EVENTS, largest=queries.MAX_EVENTS
        )
        after = request.query_params.get("after", "0")
        if not after.isascii() or not after.isdigit() or len(after) > 9:
            raise InvalidInput.field("after", "A whole number, 0 or more.")
        found = queries.events(self.run_id, after=int(after), limit=limit)
        self.refuse_folded(found)
        next_after = found[-1].sequence if len(found) == limit else None
        return Response({"items": [represent_event(event) for event in found], "next_after": next_after})


class StopRun(RunEndpoint):
    permissions = {"POST": "run.stop"}

    @extend_schema(
        summary="Ask for a run to be stopped",
        request=StopSerializer,
        responses={200: RunSerializer, 202: RunSerializer},
    )
    def post(self, request: Request, id: str) -> Response:
        values = read_body(StopSerializer, request.data or {})
        result = services.request_cancel(self.grant, self.run_id, note=values.get("note", ""))
        if result.outcome == "already_terminal":
            raise RunEnded
        run = queries.get(self.run_id)
        return Response(show([run])[0], status=202 if result.outcome == "accepted" else 200)


class ResolveStop(RunEndpoint):
    """A person's way out of a stop that came to nothing; an addition to the contract."""

    permissions = {"POST": "run.stop"}

    @extend_schema(
        summary="Decide about a stop that did not reach its process",
        description="`verify` delivers it again; `lost` and `cancelled` say of a blocked one that nothing runs.",
        request=ResolveStopSerializer,
        responses=RunSerializer,
    )
    def post(self, request: Request, id: str) -> Response:
        values = read_body(ResolveStopSerializer, request.data)
        stop_decision.resolve(self.grant, self.run_id, values["decision"], values["reason"])
        return Response(show([queries.get(self.run_id)])[0])


class KillEscaped(RunEndpoint):
    """Ends exactly the processes that outlived a stop; an addition to the contract."""

    permissions = {"POST": "run.stop"}

    @extend_schema(
        summary="Kill the processes that outlived the stop of a run",
        description="Only those that the attempt's `stop.proof.escaped` names, each by pid and start time.",
        request=None,
        responses={202: EscapedKillSerializer},
    )
    def post(self, request: Request, id: str) -> Response:
        if request.data not in ({}, None):
            raise InvalidInput("This call takes no body.")
        wish = escaped.request_kill(self.grant, self.run_id)
        return Response(EscapedKillSerializer(wish).data, status=202)


class PinRun(RunEndpoint):
    """Keeps a run whole, whatever the retention rules say; an addition to the contract."""

    permissions = {"PUT": holds.PERMISSION, "DELETE": holds.PERMISSION}

    @extend_schema(summary="Pin a run", request=PinSerializer, responses=HoldSerializer)
    def put(self, request: Request, id: str) -> Response:
        values = read_body(PinSerializer, request.data or {})
        return Response(represent_hold(holds.pin_run(self.grant, self.run_id, values.get("reason", ""))))

    @extend_schema(summary="Take the pin of a run back", request=None, responses={204: None})
    def delete(self, request: Request, id: str) -> Response:
        holds.unpin_run(self.grant, self.run_id)
        return Response(status=204)


class Holds(RunEndpoint):
    """Who still needs a run."""

    permissions = {"GET": "run.read"}

    @extend_schema(summary="List why a run stays whole", responses=HoldListSerializer)
    def get(self, request: Request, id: str) -> Response:
        only_parameters(request)
        return Response({"items": [represent_hold(row) for row in holds.of_run(self.run_id)]})


class RetryRun(RunEndpoint):
    permissions = {"POST": "run.retry"}

    @extend_schema(
        summary="Start the task of a run again, with its input",
        parameters=[IDEMPOTENCY_KEY],
        request=None,
        responses={200: RunSerializer, 201: RunSerializer},
    )
    def post(self, request: Request, id: str) -> Response:
        if request.data not in ({}, None):
            raise InvalidInput("A retry takes no body.")
        alone = _alone(self.credential, "run.retry")
        result = services.retry_run(self.grant, self.run_id, idempotency_key=_key(request), alone=alone)
        return _started(result)


class Skips(ProjectEndpoint):
    permissions = {"GET": "run.read"}

    @extend_schema(
        summary="List starts that did not happen",
        parameters=[*PAGE_PARAMETERS, _TASK, *SPAN],
        responses=paged(SkipSerializer),
    )
    def get(self, request: Request, p: str) -> Response:
        page = queries.skips(
            self.project_id,
            task_id=_task_filter(self.project_id, request),
            since=moment(request, "since"),
            until=moment(request, "until"),
            **page_of(request, "task", "since", "until"),
        )
        complete_open(page.items)
        return page_response(page, represent_skip)


def show(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Runs as the API shows them, with a constant number of queries."""
    attempts = queries.latest_attempts([run.pk for run in runs])
    waiting, again = dispatch.waiting_for(runs), queries.next_attempts(runs)
    return [represent(run, attempts, waiting.get(run.pk), again.get(run.pk)) for run in runs]


def _start(
    grant: Grant, task: Task, values: Mapping[str, Any], request: Request, alone: Alone | None
) -> Response:
    result = services.start_run(
        grant,
        task.pk,
        trigger_type="api",
        input=values.get("input"),
        args=values.get("args", ()),
        priority=values.get("priority"),
        idempotency_key=_key(request),
        alone=alone,
    )
    return _started(result)


def _started(result: Started | Skipped) -> Response:
    if isinstance(result, Skipped):
        raise ConcurrencySkipped(skip=str(result.skip.pk))
    run = queries.get(result.run.pk)
    return etag(Response(show([run])[0], status=200 if result.replayed else 201), run.version)


def _alone(credential: Credential, scope: str) -> Alone | None:
    """A person who is exempt means what they do in a session; a token does where its scopes name it, never by `*`."""
    return Alone() if credential.scopes is None or scope in credential.scopes else None


def _key(request: Request) -> str | None:
    return idempotency_key(request) if "Idempotency-Key" in request.headers else None


def _task_filter(project_id: str, request: Request) -> UUID | None:
    reference = request.query_params.get("task")
    return tasks.find(project_id, reference).pk if reference else None


def moment(request: Request, name: str) -> datetime | None:
    text = request.query_params.get(name)
    if not text:
        return None
    try:
        # A plus sign in a query string arrives as a space.
        value = parse_datetime(text.replace(" ", "+"))
        if value is not None and value.tzinfo is not None:
            value = value.astimezone(UTC)
            # Nothing lies further off, and whoever reckons with it stays within what a calendar holds.
            if 1900 <= value.year < 9990:
                return value
    except (ValueError, OverflowError):
        pass
    raise InvalidInput.field(name, "A time like 2026-11-29T18:05:03Z.")

"""Views over approvals: ask, look, decide."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from drf_spectacular.utils import OpenApiParameter
from rest_framework.request import Request
from rest_framework.response import Response

from apps.access.endpoints import (
    PAGE_PARAMETERS,
    ProjectEndpoint,
    describe,
    etag,
    only_parameters,
    page_of,
    page_response,
    paged,
    read_body,
)
from apps.approvals import queries, services, voting
from apps.approvals.api.serializers import (
    ApprovalSerializer,
    DecisionSerializer,
    FileSerializer,
    OneApprovalSerializer,
    represent,
    represent_one,
)
from apps.approvals.errors import HumanDecisionRequired
from apps.approvals.queries import Filters
from apps.approvals.services import Verdict, Wish
from apps.approvals.services.deciding import PERMISSION as DECIDE
from apps.core.errors import InvalidInput, NotFound
from apps.identity.principals import PolicySubject
from apps.projects import policy
from apps.projects.errors import ApprovalRequired

ORIGIN = "api"


class Approvals(ProjectEndpoint):
    permissions = {"GET": "project.read", "POST": "run.start"}

    def require(self, needed: str) -> None:
        """Whoever may only ask may file, and for a task that needs an approval whoever may act, too."""
        with suppress(ApprovalRequired):
            super().require(needed)

    @describe(
        summary="List requests for approval",
        parameters=[
            *PAGE_PARAMETERS,
            OpenApiParameter("state", str, description="One stored state; open ones come as they expire."),
            OpenApiParameter("live", bool, description="Leave out what has lapsed; with an open state only."),
            OpenApiParameter("requested_by", str, description="`me`: only what the caller asked for."),
        ],
        responses=paged(ApprovalSerializer),
    )
    def get(self, request: Request, p: str) -> Response:
        query = request.query_params
        filters = Filters(
            state=query.get("state") or None,
            requested_by=_me(query.get("requested_by"), self.principal.subject),
            live=_flag("live", query.get("live")),
        )
        wanted = page_of(request, "state", "live", "requested_by")
        page = queries.page(self.project_id, filters, **wanted)
        tallies = voting.tallies(self.project_id, [seen.request for seen in page.items])
        return page_response(page, lambda seen: represent(seen, tallies[seen.request.pk]))

    @describe(
        summary="Ask for approval to start a task",
        request=FileSerializer,
        responses={200: OneApprovalSerializer, 201: OneApprovalSerializer},
    )
    def post(self, request: Request, p: str) -> Response:
        wish = Wish(**read_body(FileSerializer, request.data))
        secrets = self.credential.covers(policy.SECRET_USE)
        filed = services.file_request(self.principal, self.project_id, wish, origin=ORIGIN, secrets=secrets)
        return _answer(filed.request.pk, given=True, status=200 if filed.existing else 201)


class ApprovalEndpoint(ProjectEndpoint):
    """A view of one request; its project follows from it."""

    def locate_project(self, **kwargs: Any) -> str:
        project_id = queries.project_of(kwargs["id"])
        if project_id is None:
            raise NotFound
        return project_id


class OneApproval(ApprovalEndpoint):
    permissions = {"GET": "project.read"}

    @describe(summary="Read a request for approval", responses=OneApprovalSerializer)
    def get(self, request: Request, id: str) -> Response:
        only_parameters(request)
        return _answer(id, given=self._may_see(id))

    def _may_see(self, request_id: str) -> bool:
        row = queries.find(request_id).request
        subject = self.principal.subject
        if (row.requested_by_type, row.requested_by_id) == subject.pair:
            return True
        # A credential that is not for deciding, one for reading only above all, shows no more than its own use takes.
        may = self.credential.covers(DECIDE)
        return may and policy.decide(subject, self.project_id, DECIDE).effect == "allow"


class Decision(ApprovalEndpoint):
    permissions = {"POST": DECIDE}
    fresh = frozenset({"POST"})

    def require(self, needed: str) -> None:
        """Only people decide; for others than members of the project there is nothing here."""
        if self.principal.subject.type != "user":
            super().require("project.read")
            raise HumanDecisionRequired
        super().require(needed)

    @describe(
        summary="Approve or reject a request",
        request=DecisionSerializer,
        responses={200: OneApprovalSerializer},
    )
    def post(self, request: Request, id: str) -> Response:
        verdict = Verdict(request_id=id, **read_body(DecisionSerializer, request.data))
        services.decide(self.principal, verdict, origin=ORIGIN)
        return _answer(id, given=True)


class Withdrawal(ApprovalEndpoint):
    """Taking back what one asked for; an addition to the contract."""

    permissions = {"POST": "run.start"}

    def require(self, needed: str) -> None:
        """Who asked may take it back; that is all the same right which asking takes."""
        with suppress(ApprovalRequired):
            super().require(needed)

    @describe(
        summary="Take a request back that nobody decided",
        request=None,
        responses={200: OneApprovalSerializer},
    )
    def post(self, request: Request, id: str) -> Response:
        if request.data not in ({}, None):
            raise InvalidInput
        services.withdraw(self.principal, id, origin=ORIGIN)
        return _answer(id, given=True)


def _answer(request_id: str, *, given: bool, status: int = 200) -> Response:
    seen = queries.examine(request_id)
    plan = queries.plan_of(seen.request)
    body = represent_one(seen, plan, queries.tally_of(seen.request), given=given)
    return etag(Response(body, status=status), seen.request.version)


def _me(text: str | None, subject: PolicySubject) -> PolicySubject | None:
    if not text:
        return None
    if text != "me":
        raise InvalidInput.field("requested_by", "Only `me`.")
    return subject


def _flag(name: str, text: str | None) -> bool:
    if text in (None, "", "false"):
        return False
    if text != "true":
        raise InvalidInput.field(name, "`true` or `false`.")
    return True

"""projects-and-identity.md §14, scenario 37: closing an action by hand, signed in through a provider over real HTTP."""

from __future__ import annotations

import hashlib
import time as wall
from collections.abc import Iterator
from typing import Any

import pytest

from apps.access.models import SignIn, User
from apps.access.oidc import metadata
from apps.approvals.models import (
    ApprovedActionDispatch,
    ApprovedActionExecution,
    ApprovedActionRecoveryAuthorization,
    ApprovedActionRecoveryControl,
    ApprovedActionRecoveryResolution,
)
from apps.approvals.services import manual
from apps.audit.models import AuditEntry
from apps.core import clock
from apps.projects.models import Project, ProjectRoleBinding
from qinglong import single_sign_on
from tests.access.provider import CLIENT, SECRET, Hostile, running
from tests.access.single_sign_on import BASE, Browser
from tests.approvals import action_kit, kit
from tests.approvals.kit import ready
from tests.conftest import Time
from tests.people import Api, give

pytestmark = pytest.mark.django_db

__all__ = ["ready"]


@pytest.fixture
def there(settings: Any) -> Iterator[Hostile]:
    metadata.forget()
    manual.recoveries.clear()
    with running() as found:
        settings.BASE_URL = BASE
        settings.SINGLE_SIGN_ON = single_sign_on.read(
            {
                "OIDC_ISSUER": found.issuer,
                "OIDC_CLIENT_ID": CLIENT,
                "OIDC_CLIENT_SECRET": SECRET,
                "OIDC_PROVISION": "yes",
                "OIDC_MULTI_FACTOR": "urn:mfa",
            },
            BASE,
        )
        yield found


def stuck() -> ApprovedActionDispatch:
    """An action whose process died behind the barrier; its lease ran out half a minute ago."""
    with clock.fixed(Time(int(wall.time() * 1000) - 2 * action_kit.LEASE_MS)):
        dispatch = action_kit.handed_over(kit.cast())
        action_kit.started(dispatch)
    return dispatch


def signed_in(there: Hostile, **claims: Any) -> Browser:
    there.person, there.claims = "1001", {"preferred_username": "ann", **claims}
    browser = Browser()
    browser.sign_in(there)
    return browser


def close(browser: Browser, dispatch: ApprovedActionDispatch, **changed: Any) -> Any:
    body = {
        "decision": "confirm_failed", "reason_code": "looked_myself", "mutation_id": "m-1",
        "expected_execution_version": 2, "expected_recovery_version": 0, **changed,
    }  # fmt: skip
    return Api(client=browser)("POST", f"approvals/{dispatch.approval_request_id}/recovery", body)


def written() -> list[Any]:
    """Every row that closing an action changes or adds."""
    models = (
        ApprovedActionExecution, ApprovedActionRecoveryControl, ApprovedActionRecoveryResolution,
        ApprovedActionRecoveryAuthorization,
    )  # fmt: skip
    told = AuditEntry.objects.filter(scope="default").order_by("sequence")
    return [list(model._default_manager.order_by("pk").values()) for model in models] + [list(told.values())]


def person_with(role: str) -> User:
    user = User.objects.get(username="ann")
    give(user, "viewer")
    give(user, role, version=2)
    return user


def test_projects_37_one_proof_is_refused_and_a_listed_acr_accepted(there: Hostile) -> None:
    dispatch = stuck()
    weak = signed_in(there, acr="urn:pwd")
    user = person_with("admin")
    before = written()
    answer = close(weak, dispatch)
    code = "approved_action_recovery_strong_authentication_required"
    assert (answer.status_code, answer.json()["code"]) == (401, code)
    assert written() == before

    browser = signed_in(there, acr="urn:mfa", auth_time=int(wall.time()) - 60)
    assert browser.me["subject"]["id"] == user.subject_id == weak.me["subject"]["id"]
    assert close(weak, dispatch).json()["code"] == code, "a stronger sign-in elsewhere lifts no other session"
    answer = close(browser, dispatch)
    assert answer.status_code == 200, answer.content
    assert answer.json()["recovery"]["resolution"]["resolved_by"] == {"type": "user", "id": user.subject_id}

    session = SignIn.objects.get(user=user, assurance="multi_factor")
    binding = ProjectRoleBinding.objects.filter(subject_id=user.subject_id).latest("version")
    fact = ApprovedActionRecoveryAuthorization.objects.get(pk=dispatch.pk)
    key = browser.session.session_key
    assert key is not None
    assert fact.authentication_id == "oidc:" + hashlib.sha256(key.encode()).hexdigest()
    assert (fact.resolved_by_id, fact.assurance) == (user.subject_id, "multi_factor")
    assert fact.authenticated_at == session.authenticated_at
    assert 60_000 <= clock.to_ms(fact.authorized_at) - clock.to_ms(fact.authenticated_at) < manual.RECENT_MS
    assert (fact.project_version, fact.binding_version) == (
        Project.objects.get(pk=dispatch.project_id).version,
        binding.version,
    )
    assert fact.binding_version == 2


@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"acr": "URN:MFA"},
        {"acr": "urn:mfa "},
        {"acr": ["urn:mfa"]},
        {"amr": "urn:mfa"},
        {"acr_values": "urn:mfa"},
        {"acr": "urn:mfa", "auth_time": -301},
    ],
)
def test_projects_37_what_is_not_listed_or_not_recent_closes_nothing(
    there: Hostile, claims: dict[str, Any]
) -> None:
    if "auth_time" in claims:
        claims = {**claims, "auth_time": int(wall.time()) + claims["auth_time"]}
    dispatch = stuck()
    signed_in(there)
    person_with("admin")
    before = written()
    answer = close(signed_in(there, **claims), dispatch)
    assert answer.status_code == 401, answer.content
    assert answer.json()["code"] == "approved_action_recovery_strong_authentication_required"
    assert written() == before


def test_projects_37_a_strong_sign_in_is_no_role(there: Hostile) -> None:
    dispatch = stuck()
    browser = signed_in(there, acr="urn:mfa")
    person_with("operator")
    before = written()
    answer = close(browser, dispatch)
    assert (answer.status_code, answer.json()["code"]) == (403, "permission_denied")
    assert written() == before

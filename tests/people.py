"""Accounts, roles and API clients, for tests of every app."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

from django.conf import settings
from django.contrib.auth.hashers import make_password
from django.test import Client, RequestFactory

from apps.access.models import SignIn, User
from apps.access.scopes import Credential
from apps.access.services import create_token, sign_in
from apps.access.services.accounts import register
from apps.access.sessions import SessionStore
from apps.core import clock, ids
from apps.identity.principals import Assurance, PolicySubject, Principal
from apps.identity.services import register_subject
from apps.projects.policy import Grant, authorize
from apps.projects.queries import DEFAULT_PROJECT
from apps.projects.services import Binding, append_role_binding, create_project

PASSWORD = "correct horse 7 battery"
ROOT = PolicySubject("system", "tests")


def account(name: str = "ann", *, administrator: bool = False) -> User:
    """An account without a role; its password is `PASSWORD`."""
    return register(name, make_password(PASSWORD), administrator=administrator, actor=ROOT, origin="tests")


def subject(user: User) -> PolicySubject:
    """The subject behind an account."""
    return PolicySubject("user", user.subject_id)


def other_subject(kind: str) -> PolicySubject:
    """A subject that is no user."""
    return PolicySubject(kind, register_subject(kind).id)


def give(
    who: User | PolicySubject, role: str | None, project_id: str = DEFAULT_PROJECT, version: int = 1
) -> None:
    """Writes a role as the given version of its history."""
    found = who if isinstance(who, PolicySubject) else subject(who)
    append_role_binding(
        version - 1, Binding(project_id, found, version, role, str(ids.uuid7()), ROOT, clock.now())
    )


def member(role: str, name: str | None = None, project_id: str = DEFAULT_PROJECT, **options: Any) -> User:
    """An account with a role."""
    user = account(name or role, **options)
    give(user, role, project_id)
    return user


def project(owner: User, slug: str = "second") -> str:
    """The id of a further project, owned by an account."""
    return create_project(subject(owner), name=slug.title(), slug=slug, origin="tests").id


def principal(who: User | PolicySubject, assurance: Assurance = Assurance.SINGLE_FACTOR) -> Principal:
    """A principal that is active for an hour from now."""
    found = who if isinstance(who, PolicySubject) else subject(who)
    now = clock.now_ms()
    return Principal(found, "tests:1", clock.from_ms(now), clock.from_ms(now + 3_600_000), assurance)


def grant(
    who: User | PolicySubject, permission: str, project_id: str = DEFAULT_PROJECT, **options: Any
) -> Grant:
    """A grant as a view would get it."""
    return authorize(principal(who), project_id, permission, origin="tests", **options)


def token(
    who: User | PolicySubject,
    *scopes: str,
    project_id: str | None = None,
    expires_at: datetime | None = None,
) -> str:
    """The secret of a new token; without scopes it may do all that can be given."""
    found = who if isinstance(who, PolicySubject) else subject(who)
    every = ("*", "policy.manage", "secret.manage", "token.manage", "approval.decide", "approval.recover")
    return create_token(
        found,
        name="tests",
        scopes=scopes or every,
        project_id=project_id,
        expires_at=expires_at,
        maker=Credential("session"),
        origin="tests",
    ).secret


class Api:
    """A client of the API: JSON in, JSON out."""

    def __init__(self, secret: str | None = None, *, client: Client | None = None) -> None:
        self.client = client or Client()
        self.headers = {} if secret is None else {"Authorization": f"Bearer {secret}"}

    def __call__(self, method: str, path: str, body: Any = None, **headers: str) -> Any:
        """The response; `path` is relative to the API, header names have `_` for `-`."""
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        options: dict[str, Any] = {} if body is None else {"data": body, "content_type": "application/json"}
        return self.client.generic(
            method, f"/api/v3/{path}", headers={**self.headers, **sent}, **_encoded(options)
        )


def _encoded(options: dict[str, Any]) -> dict[str, Any]:
    import json

    if "data" in options and not isinstance(options["data"], str | bytes):
        options["data"] = json.dumps(options["data"])
    return options


def api(who: User | PolicySubject, *scopes: str) -> Api:
    """A client with a token of somebody."""
    return Api(token(who, *scopes))


def signed_in(
    user: User,
    *,
    csrf: bool = False,
    assurance: Assurance = Assurance.SINGLE_FACTOR,
    method: str = "password",
    provider: tuple[str, str] | None = None,
    **headers: str,
) -> Client:
    """A browser with a session that is fresh, by the binding of the account or another one."""
    request = RequestFactory().post("/panel/login/", **headers)
    request.session = SessionStore()
    name, provider_subject = provider or ("local", str(user.pk))
    sign_in(request, subject(user), method, assurance, provider=name, provider_subject=provider_subject)
    request.session.save()
    client = Client(enforce_csrf_checks=csrf)
    client.cookies[settings.SESSION_COOKIE_NAME] = request.session.session_key
    return client


def age_sign_ins(minutes: int = 16) -> None:
    """Lets every session have been proved so long ago."""
    then = clock.now() - timedelta(minutes=minutes)
    SignIn.objects.update(authenticated_at=then, created_at=then)

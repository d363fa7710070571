"""Subjects, their status, and what a principal is (projects-and-identity.md §3.4–3.6)."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from apps.audit.models import AuditEntry
from apps.core import clock
from apps.core.errors import InvalidInput, NotFound, VersionConflict
from apps.identity.principals import Assurance, PolicySubject, Principal, PrincipalExpired
from apps.identity.queries import find_subject
from apps.identity.services import append_authentication_binding, register_subject, set_subject_status
from tests.conftest import Time
from tests.people import ROOT


@pytest.mark.django_db
def test_subjects_are_opaque_and_switched_by_version() -> None:
    person = register_subject("user", actor=ROOT, origin="tests")
    assert person.id.startswith("usr_") and find_subject(person.id) == person
    off = set_subject_status(person.id, 1, "disabled", actor=ROOT, origin="tests")
    assert (off.status, off.version) == ("disabled", 2)
    with pytest.raises(VersionConflict) as stale:
        set_subject_status(person.id, 1, "active", actor=ROOT, origin="tests")
    assert stale.value.extra == {"current_version": 2}
    with pytest.raises(NotFound):
        set_subject_status("usr_none", 1, "active", actor=ROOT, origin="tests")
    with pytest.raises(InvalidInput):
        set_subject_status(person.id, 2, "gone", actor=ROOT, origin="tests")
    with pytest.raises(InvalidInput):
        register_subject("robot")
    assert find_subject("usr_none") is None and find_subject("a\n") is None
    actions = AuditEntry.objects.filter(scope="").order_by("sequence").values_list("action", flat=True)
    assert list(actions) == ["subject.registered", "subject.disabled"]


@pytest.mark.django_db
def test_bindings_are_versions() -> None:
    person = register_subject("user")
    options: dict[str, Any] = {"actor": ROOT, "origin": "tests"}
    assert append_authentication_binding("local", "x", person.id, expected_version=0, **options) == 1
    with pytest.raises(VersionConflict):
        append_authentication_binding("local", "x", person.id, expected_version=0, **options)
    with pytest.raises(NotFound):
        append_authentication_binding("local", "y", "usr_none", expected_version=0, **options)
    with pytest.raises(InvalidInput):
        append_authentication_binding("local", "x", person.id, expected_version=1, state="lost", **options)


def test_a_principal_is_active_from_sign_in_to_expiry(time: Time) -> None:
    now = clock.now()
    who = Principal(
        PolicySubject("user", "u"), "local:1", now, now + timedelta(milliseconds=2), Assurance.SINGLE_FACTOR
    )
    for after, active in ((-1, False), (0, True), (1, True), (2, False)):
        time.ms = clock.to_ms(now) + after
        if active:
            who.require_active()
        else:
            with pytest.raises(PrincipalExpired):
                who.require_active()


@pytest.mark.parametrize(
    "change",
    [
        {"authentication_id": ""},
        {"authentication_id": "-x"},
        {"authentication_id": "x" * 129},
        {"authentication_id": "x\n"},
        {"assurance": "certain"},
    ],
)
def test_a_principal_checks_itself(change: dict[str, Any]) -> None:
    now = clock.now()
    who = Principal(PolicySubject("user", "u"), "a", now, now + timedelta(1), Assurance.SERVICE)
    with pytest.raises(InvalidInput):
        replace(who, **change)
    with pytest.raises(InvalidInput):
        replace(who, expires_at=now)

"""Somebody new comes in by a link: what it gives, to whom it is refused, and what a stranger learns."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import Any

import pytest
from django.db import DatabaseError, transaction
from django.test import Client

from apps.access.models import Invitation, SignIn, User
from apps.access.services import change_person, invite, revoke_invitation
from apps.access.services.invitations import KEPT, forget_invitations
from apps.audit import queries as audit
from apps.audit.models import AuditEntry
from apps.core import clock
from apps.core.errors import Forbidden, InvalidInput
from apps.identity.services import set_subject_status
from apps.projects.errors import OwnersOnly
from apps.projects.models import ProjectRoleBinding
from apps.projects.queries import roles_of
from apps.projects.services import set_project_status
from tests.conftest import Time
from tests.people import (
    PASSWORD,
    ROOT,
    account,
    api,
    give,
    grant,
    member,
    signed_in,
    subject,
)

pytestmark = [pytest.mark.django_db, pytest.mark.usefixtures("patience")]
PAGE = "/invitation/"


def link(inviter: User, **options: Any) -> str:
    """The secret of a new invitation."""
    return invite(subject(inviter), origin="tests", **options).secret


def into(inviter: User, role: str, **options: Any) -> str:
    """The secret of an invitation into the default project."""
    return link(inviter, grant=grant(inviter, "policy.manage"), role=role, **options)


def come_in(
    secret: str, name: str = "newcomer", password: str = PASSWORD, client: Client | None = None
) -> Any:
    return (client or Client()).post(PAGE, {"secret": secret, "username": name, "password": password})


def code(answer: Any) -> str:
    found = re.search(r"<code>([a-z_]+)</code>", answer.content.decode())
    assert found, answer.content.decode()
    return found[1]


def roles(name: str) -> dict[str, str]:
    user = User.objects.get(username=name)
    return {str(one.project_id): str(one.role) for one in roles_of(subject(user))}


def test_what_was_promised_is_what_the_new_person_has(boss: User) -> None:
    client = Client()
    secret = into(boss, "operator", username="nina")
    page = client.post(PAGE, {"secret": f"http://testserver/invitation/#{secret}"}).content.decode()
    assert 'value="nina"' in page and "Operator" in page and "administer" not in page
    assert come_in(secret, "nina.b", client=client).headers["Location"] == "/panel/"
    user = User.objects.get(username="nina.b")
    assert not user.is_superuser and roles("nina.b") == {"default": "operator"}
    assert client.get("/api/v3/me").json()["subject"]["id"] == user.subject_id
    binding = ProjectRoleBinding.objects.get(subject_id=user.subject_id)
    assert (binding.changed_by_id, binding.version) == (boss.subject_id, 1)
    assert binding.mutation_id == f"invitation:{Invitation.objects.get().pk}"
    row = Invitation.objects.get()
    assert row.accepted_by_id == user.subject_id and row.accepted_at is not None


def test_an_administrator_promises_the_instance_and_no_role(root: User) -> None:
    assert come_in(link(root, administrator=True), "second").status_code == 302
    second = User.objects.get(username="second")
    assert second.is_superuser and roles("second") == {}
    assert come_in(link(root), "third").status_code == 302
    assert not User.objects.get(username="third").is_superuser


def test_only_who_could_give_it_promises_it(root: User, boss: User) -> None:
    admin, viewer = member("admin", "adam"), member("viewer", "vic")
    for inviter in (boss, admin, viewer):
        for options in ({}, {"administrator": True}):
            with pytest.raises(Forbidden):
                link(inviter, **options)
    with pytest.raises(OwnersOnly):
        into(admin, "owner")
    with pytest.raises(Forbidden):
        into(boss, "viewer", administrator=True)
    with pytest.raises(Forbidden):
        link(viewer, grant=grant(viewer, "project.read"), role="viewer")
    with pytest.raises(InvalidInput):
        link(root, role="viewer")
    disabled = account("gone", administrator=True)
    set_subject_status(disabled.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    with pytest.raises(Forbidden):
        link(disabled)
    assert not Invitation.objects.exists()
    assert into(boss, "owner") and into(admin, "admin")


def test_a_stranger_sees_one_answer_for_all_that_is_no_link(root: User, time: Time) -> None:
    used, revoked, expired = (link(root, lasts=timedelta(hours=1)) for _ in range(3))
    assert come_in(used).status_code == 302
    last = Invitation.objects.order_by("created_at", "id")[1]
    revoke_invitation(last.pk, actor=subject(root), origin="tests")
    time.advance(3_600_000)
    unknown = "ql3i_" + "x" * 43
    texts = [used, revoked, expired, unknown, "", "ql3i_", "nonsense", unknown + "\0", "ü" * 48, "x" * 9000]
    answers = [come_in(text, "another") for text in texts]
    answers += [Client().post(PAGE, {"secret": text}) for text in texts[:4]]
    assert {answer.status_code for answer in answers} == {404}
    assert {code(answer) for answer in answers} == {"invitation_invalid"}
    assert len({_without_csrf(answer) for answer in answers}) == 1
    assert not User.objects.filter(username="another").exists()


def _without_csrf(answer: Any) -> str:
    return re.sub(r'name="csrfmiddlewaretoken" value="[^"]+"', "", answer.content.decode())


def test_a_link_ends_at_its_moment_and_works_until_then(root: User, time: Time) -> None:
    first, second = (link(root, lasts=timedelta(minutes=5)) for _ in range(2))
    time.advance(299_999)
    assert come_in(first, "early").status_code == 302
    time.advance(1)
    assert come_in(second, "late").status_code == 404


@pytest.mark.parametrize(
    "lasts", [timedelta(days=30, milliseconds=1), timedelta(minutes=5) - timedelta(milliseconds=1)]
)
def test_no_link_lasts_too_long_or_too_short(root: User, lasts: timedelta) -> None:
    with pytest.raises(InvalidInput):
        link(root, lasts=lasts)
    made = invite(subject(root), origin="tests").invitation
    assert made.expires_at - made.created_at == timedelta(days=7)


def test_a_promise_falls_with_the_right_of_who_made_it(root: User, boss: User) -> None:
    """Each is closed to the new person by a code, and opens again when the right is back."""
    admin = member("admin", "adam")
    other = member("owner", "olga")
    other_root = account("other", administrator=True)
    by_admin, by_owner, by_root = into(admin, "viewer"), into(other, "owner"), link(other_root)
    give(admin, "operator", version=2)
    give(other, "admin", version=2)
    change_person(other_root.subject_id, 1, administrator=False, actor=subject(root), origin="tests")
    for secret in (by_admin, by_owner, by_root):
        answer = come_in(secret)
        assert (answer.status_code, code(answer)) == (409, "invitation_not_backed")
    assert not User.objects.filter(username="newcomer").exists()
    assert AuditEntry.objects.filter(action="subject.registered", origin="invitation").count() == 0
    reasons = {
        entry.metadata["reason"] for entry in AuditEntry.objects.filter(scope="", action="invitation.refused")
    }
    assert reasons == {"inviter_lost_right"}
    give(other, "owner", version=3)
    assert come_in(by_owner).status_code == 302 and roles("newcomer") == {"default": "owner"}


def test_a_promise_of_somebody_who_was_disabled_is_none(root: User, boss: User) -> None:
    secret = into(boss, "viewer")
    give(account("second"), "owner")
    change_person(boss.subject_id, 1, status="disabled", actor=subject(root), origin="tests")
    answer = come_in(secret)
    assert (answer.status_code, code(answer)) == (409, "invitation_not_backed")
    assert "boss" not in answer.content.decode()
    refused = AuditEntry.objects.filter(action="invitation.refused")
    assert {(entry.scope, entry.metadata["reason"]) for entry in refused} == {
        ("", "inviter_disabled"), ("default", "inviter_disabled"),
    }  # fmt: skip


def test_nobody_joins_an_archived_project(boss: User) -> None:
    secret = into(boss, "viewer")
    set_project_status(grant(boss, "project.manage"), 1, "archived")
    answer = come_in(secret)
    assert (answer.status_code, code(answer)) == (409, "invitation_project_archived")
    set_project_status(grant(boss, "project.manage", while_archived=True), 2, "active")
    assert come_in(secret).status_code == 302


def test_whoever_holds_a_refused_link_writes_one_entry_an_hour(boss: User, time: Time) -> None:
    secret = into(boss, "viewer")
    give(boss, "viewer", version=2)
    for _ in range(5):
        come_in(secret)
    assert AuditEntry.objects.filter(scope="", action="invitation.refused").count() == 1
    time.advance(3_600_000)
    come_in(secret)
    assert AuditEntry.objects.filter(scope="", action="invitation.refused").count() == 2


def test_a_bad_name_or_password_uses_nothing_up(root: User) -> None:
    secret = link(root)
    bad = come_in(secret, "new comer")
    assert bad.status_code == 400 and 'href="#username"' in bad.content.decode()
    weak = come_in(secret, "newcomer", "1234567890")
    assert weak.status_code == 400 and 'href="#password"' in weak.content.decode()
    taken = come_in(secret, "ROOT")
    assert taken.status_code == 409 and "This name is taken." in taken.content.decode()
    assert come_in(secret).status_code == 302


def test_guessing_and_asking_for_names_is_bounded(root: User) -> None:
    secret, other = link(root), link(root)
    for _ in range(20):
        come_in(secret, "root")
    answer = come_in(secret, "nobody")
    assert answer.status_code == 429 and int(answer.headers["Retry-After"]) > 0
    assert come_in(other, "nobody").status_code == 302, "another link is another person"
    for _ in range(20):
        come_in("ql3i_" + "y" * 43)
    assert come_in(other).status_code == 429
    assert Client().post(PAGE, {"secret": other}, REMOTE_ADDR="203.0.113.9").status_code == 404


def test_inviters_have_bounds(boss: User, time: Time) -> None:
    given = grant(boss, "policy.manage")
    made = [invite(subject(boss), grant=given, role="viewer", origin="tests") for _ in range(100)]
    with pytest.raises(InvalidInput):
        invite(subject(boss), grant=given, role="viewer", origin="tests")
    revoke_invitation(made[0].invitation.pk, actor=subject(boss), origin="tests")
    answer = api(boss)("POST", "projects/default/invitations", {"role": "viewer"})
    assert (answer.status_code, answer.json()["code"]) == (429, "too_many_invitations")
    assert int(answer["Retry-After"]) > 0
    time.advance(3_600_000)
    assert into(boss, "viewer")


def test_both_ways_are_audited_and_the_link_is_in_none_of_it(root: User, boss: User) -> None:
    secret = into(boss, "viewer")
    come_in(secret)
    into(boss, "admin")
    open_one = Invitation.objects.get(accepted_at=None)
    revoke_invitation(open_one.pk, actor=subject(root), origin="tests")
    newcomer = User.objects.get(username="newcomer")
    for scope in ("", "default"):
        entries = AuditEntry.objects.filter(scope=scope, action__startswith="invitation.").order_by(
            "sequence"
        )
        assert [(entry.action, entry.actor_id) for entry in entries] == [
            ("invitation.made", boss.subject_id), ("invitation.accepted", newcomer.subject_id),
            ("invitation.made", boss.subject_id), ("invitation.revoked", root.subject_id),
        ]  # fmt: skip
        assert audit.verify(scope).valid
    given = AuditEntry.objects.get(scope="default", action="role.granted")
    assert (given.actor_id, given.subject_id, given.origin) == (
        boss.subject_id, newcomer.subject_id, "invitation",
    )  # fmt: skip
    everything = str(list(AuditEntry.objects.values())) + str(list(Invitation.objects.values()))
    assert secret not in everything and secret[5:] not in everything


def test_the_promise_of_a_link_never_changes_and_it_is_closed_once(root: User) -> None:
    invite(subject(root), origin="tests")
    rows = Invitation.objects.all()
    for change in (
        {"is_administrator": True},
        {"digest": "0" * 64},
        {"invited_by_id": "x"},
        {"username": "x"},
    ):
        with pytest.raises(DatabaseError), transaction.atomic():
            rows.update(**change)
    rows.update(revoked_at=clock.now())
    for again in ({"revoked_at": None}, {"accepted_at": clock.now(), "accepted_by": root.subject_id}):
        with pytest.raises(DatabaseError), transaction.atomic():
            rows.update(**again)


def test_links_that_are_long_over_are_forgotten(root: User, time: Time) -> None:
    link(root, lasts=timedelta(hours=1))
    link(root, lasts=timedelta(days=30))
    time.advance(3_600_000 + int(KEPT.total_seconds() * 1000) - 1)
    assert forget_invitations(100) == 0
    time.advance(1)
    assert forget_invitations(100) == 1 and Invitation.objects.count() == 1


def test_under_single_sign_on_only_nobody_takes_a_password_or_the_emergency_name(
    root: User, settings: Any
) -> None:
    from tests.access.single_sign_on import switched_on

    secret = link(root)
    settings.SINGLE_SIGN_ON = switched_on(required=True, break_glass="rescue")
    page = Client().post(PAGE, {"secret": secret})
    assert page.status_code == 200 and 'name="password"' not in page.content.decode()
    answer = come_in(secret, "rescue")
    assert (answer.status_code, code(answer)) == (403, "single_sign_on_required")
    assert not User.objects.filter(username="rescue").exists()
    settings.SINGLE_SIGN_ON = switched_on()
    assert come_in(secret).status_code == 302


def test_somebody_who_is_signed_in_does_not_become_somebody_else(root: User) -> None:
    secret = link(root)
    client = signed_in(root)
    assert "You are signed in as root" in client.get(PAGE).content.decode()
    assert come_in(secret, client=client).status_code == 409
    assert not User.objects.filter(username="newcomer").exists() and SignIn.objects.count() == 1


def test_the_page_needs_its_form(root: User) -> None:
    strict = Client(enforce_csrf_checks=True)
    assert strict.post(PAGE, {"secret": link(root)}).status_code == 403
    page = strict.get(PAGE)
    assert page.status_code == 200 and "no-store" in page.headers["Cache-Control"]

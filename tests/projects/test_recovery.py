"""A project whose owners are all gone gets one at the console, and only then."""

from __future__ import annotations

import pytest
from django.core.management import CommandError, call_command

from apps.audit import queries as audit
from apps.audit.models import AuditEntry
from apps.identity.services import set_subject_status
from apps.projects.errors import LastOwner
from apps.projects.queries import DEFAULT_PROJECT, is_owner
from apps.projects.services import change_role
from tests.people import ROOT, account, give, grant, member, other_subject, subject

pytestmark = pytest.mark.django_db


def recover(name: str, project: str = DEFAULT_PROJECT) -> None:
    call_command("recover_owner", project, username=name)


def test_only_where_nobody_could_act() -> None:
    ann, bob = member("owner", "ann"), member("viewer", "bob")
    with pytest.raises(CommandError, match="owner_present"):
        recover("bob")
    set_subject_status(ann.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    recover("bob")
    assert is_owner(DEFAULT_PROJECT, subject(bob))
    entry = AuditEntry.objects.get(action="owner.recovered")
    assert (entry.scope, entry.actor_id, entry.subject_id) == (DEFAULT_PROJECT, "console", bob.subject_id)
    assert audit.verify(DEFAULT_PROJECT).valid
    with pytest.raises(CommandError, match="owner_present"):
        recover("bob")


def test_an_agent_that_owns_it_is_nobody_who_could_give_the_role() -> None:
    give(other_subject("agent"), "owner")
    ann = account("ann")
    recover("ann")
    assert is_owner(DEFAULT_PROJECT, subject(ann))


def test_not_for_people_who_are_not_there_or_disabled_or_in_no_project() -> None:
    ann = account("ann")
    set_subject_status(ann.subject_id, 1, "disabled", actor=ROOT, origin="tests")
    for name, project in (("ann", "default"), ("nobody", "default"), ("ann", "no-such-project")):
        with pytest.raises(CommandError):
            recover(name, project)


def test_a_disabled_application_is_no_other_owner() -> None:
    ann = member("owner", "ann")
    bot = other_subject("api_app")
    give(bot, "owner")
    set_subject_status(bot.id, 1, "disabled", actor=ROOT, origin="tests")
    with pytest.raises(LastOwner):
        change_role(grant(ann, "policy.manage"), subject(ann), None, expected_version=1, mutation_id="m1")

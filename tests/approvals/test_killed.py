"""Killed before any statement of filing, deciding or consuming: all happened or nothing, and again is the end of it."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import pytest
from django.db import connection

from apps.approvals import services
from apps.approvals.models import ApprovalLapse, ApprovalRequest, ApprovedActionPlan
from apps.approvals.services import Wish, lapsing
from apps.audit.models import AuditChain, AuditEntry
from apps.audit.queries import verify
from apps.triggers import services as triggers
from apps.vault.models import SealedPayload
from tests import people
from tests.approvals import kit

MOST = 80


def killed_before(number: int, call: Callable[[], Any]) -> bool:
    """Runs the call in a process that is killed before its statement of that number; False if it ended before."""
    connection.close()
    child = os.fork()
    if child == 0:
        left = [number]

        def count(execute: Any, *rest: Any) -> Any:
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            left[0] -= 1
            return execute(*rest)

        try:
            with connection.execute_wrapper(count):
                call()
            os._exit(0)
        finally:
            os._exit(1)
    answer = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    assert answer in (0, -signal.SIGKILL)
    return answer != 0


def at_every_statement(call: Callable[[], Any], check: Callable[[], Any]) -> int:
    """How many statements it had; `check` holds after each death, and the call that lives does the rest."""
    for number in range(MOST):
        died = killed_before(number, call)
        check()
        if not died:
            assert number > 5
            return number
    raise AssertionError("it never ended")


def whole() -> None:
    """Nothing half done, and an audit trail that hangs together."""
    plans = set(ApprovedActionPlan.objects.values_list("request_id", flat=True))
    assert plans == set(ApprovalRequest.objects.values_list("pk", flat=True))
    assert SealedPayload.objects.count() == len(plans)
    consumed = ApprovalRequest.objects.filter(state="consumed").count()
    assert len(kit.dispatches()) == len(kit.executions()) == consumed
    for action, rows in (
        ("approval.requested", ApprovalRequest.objects.all()),
        ("approval.approved", ApprovalRequest.objects.filter(decision="approved")),
        ("approval.consumed", ApprovalRequest.objects.filter(state="consumed")),
        ("approval.voided", ApprovalLapse.objects.all()),
    ):
        assert AuditEntry.objects.filter(action=action).count() == rows.count()
    assert verify("default").valid and AuditChain.objects.filter(scope="default").exists()


@pytest.mark.django_db(transaction=True)
def test_filing_deciding_and_consuming(seeded: None) -> None:
    c = kit.cast()
    task = kit.task()
    wish = Wish(id="r-1", task=task.slug, input={"a": 1})
    principals = people.principal(c.agent), people.principal(c.admin)
    at_every_statement(lambda: services.file_request(principals[0], "default", wish, origin="tests"), whole)
    assert ApprovalRequest.objects.get().state == "pending"
    at_every_statement(lambda: services.decide(principals[1], kit.verdict(), origin="tests"), whole)
    approved = kit.fresh()
    assert approved.state == "approved"
    at_every_statement(lambda: services.consume(kit.consumption(approved)), whole)
    assert kit.fresh().state == "consumed" and len(kit.dispatches()) == 1
    assert services.consume(kit.consumption(approved)).existing


@pytest.mark.django_db(transaction=True)
def test_lapsing(seeded: None) -> None:
    c = kit.cast()
    task = kit.task()
    kit.filed(c.agent, task)
    grant = kit.policy.Grant.system("default", "task.update", "tests")
    triggers.set_task_enabled(grant, task.pk, task.version, False)
    at_every_statement(lambda: lapsing.settle("r-1"), whole)
    assert ApprovalLapse.objects.get().code == "task_disabled"

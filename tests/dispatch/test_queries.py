"""Why a queued run waits, in the words of the contract."""

from __future__ import annotations

import pytest

from apps.core import clock
from apps.dispatch.models import Worker
from apps.dispatch.queries import waiting_for
from tests.runs import kit

pytestmark = pytest.mark.django_db


def test_a_queued_run_says_what_it_waits_for() -> None:
    task = kit.task()
    first, second = kit.run_of(task), kit.run_of(task)
    assert waiting_for([first, second]) == {first.pk: "worker", second.pk: "place"}
    kit.worker()
    assert waiting_for([first, second]) == {second.pk: "place"}
    Worker.objects.update(available_slots=0)
    assert waiting_for([first]) == {first.pk: "priority"}
    Worker.objects.update(lease_expires_at=clock.now())
    assert waiting_for([first]) == {first.pk: "worker"}

"""What exists elsewhere takes as long to be refused as what does not exist: nobody reads a clock to find projects."""

from __future__ import annotations

import statistics
import time

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.access.models import User
from apps.runs.services import Started, start_run
from apps.tasks.services import TaskDraft, create_task
from tests.people import Api, account, api, grant, project, token

pytestmark = pytest.mark.django_db
UNKNOWN = "01890000-0000-7000-8000-000000000000"
ROUNDS = 40
KINDS = ["projects/{p}", "projects/{p}/tasks/{t}", "projects/{p}/audit", "runs/{r}", "runs/{r}/log"]


def pair(kind: str) -> tuple[str, str]:
    """The address of something in a project of somebody else, and of nothing."""
    owner = account("owner")
    hidden = project(owner, "hidden")
    task = create_task(
        grant(owner, "task.create", hidden), TaskDraft(name="Task", slug="task", command=["true"])
    )
    started = start_run(grant(owner, "run.start", hidden), task.pk, trigger_type="manual")
    assert isinstance(started, Started)
    return (
        kind.format(p="hidden", t=task.slug, r=started.run.pk),
        kind.format(p="none-such", t="none", r=UNKNOWN),
    )


def stranger() -> tuple[User, str]:
    """Somebody with a project of their own."""
    user = account("stranger")
    return user, project(user)


def medians(caller: Api, *paths: str) -> list[float]:
    """How long each answer takes, one beside the other, so that the load of the machine is in all of them."""
    times: list[list[float]] = [[] for _ in paths]
    for _ in range(ROUNDS):
        for number, path in enumerate(paths):
            begun = time.perf_counter()
            assert caller("GET", path).status_code == 404
            times[number].append(time.perf_counter() - begun)
    return [statistics.median(one) for one in times]


@pytest.mark.parametrize("kind", KINDS)
def test_refusals_ask_the_database_as_often(kind: str) -> None:
    paths = pair(kind)
    user, own = stranger()
    for caller in (api(user), Api(token(user, project_id=own))):
        counts = []
        for path in paths:
            caller("GET", path)
            with CaptureQueriesContext(connection) as seen:
                caller("GET", path)
            counts.append(len(seen))
        assert counts[0] == counts[1], counts


@pytest.mark.parametrize("kind", KINDS)
def test_refusals_take_the_same_time(kind: str) -> None:
    """Within what two answers of one kind differ by; a query more or less would show, but for a loaded machine."""
    there, nowhere = pair(kind)
    caller = api(stranger()[0])
    medians(caller, there, nowhere)
    for _try in range(4):
        one, other = medians(caller, there, nowhere)
        if 0.75 < one / other < 1.33:
            return
    pytest.fail(f"{one * 1000:.2f} ms where there is something, {other * 1000:.2f} ms where there is nothing")

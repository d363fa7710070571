"""The look for runs that were to be stopped and that nobody holds costs nothing however long the past is."""

from __future__ import annotations

from typing import Any

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext

from apps.dispatch.services import expiry
from tests.runs import kit

pytestmark = pytest.mark.django_db


def test_one_statement_over_the_index_of_what_is_being_stopped(time: Any) -> None:
    kit.run_of(kit.task())
    with CaptureQueriesContext(connection) as asked:
        assert expiry.end_unheld() == 0
    reads = [query["sql"] for query in asked if query["sql"].startswith("SELECT")]
    assert len(reads) == 1
    if connection.vendor == "sqlite":
        with connection.cursor() as cursor:
            cursor.execute(f"EXPLAIN QUERY PLAN {reads[0]}")
            assert "run_cancelling" in str(cursor.fetchall())

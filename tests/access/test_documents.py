"""The description of the API: whole, valid, and shown under the strict policy."""

from __future__ import annotations

import re

import pytest
from django.contrib.staticfiles import finders
from django.core.management import call_command
from django.test import Client

from tests.people import Api, api, member, signed_in

pytestmark = pytest.mark.django_db


def test_the_schema_is_clean(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    call_command("spectacular", "--fail-on-warn", "--validate", "--file", f"{tmp_path}/schema.yaml")


def test_the_schema_is_served_to_everybody_who_is_somebody() -> None:
    assert Api()("GET", "schema").status_code == 401
    document = api(member("viewer"), "run.read")("GET", "schema").json()
    assert document["openapi"].startswith("3.1")
    assert document["info"]["title"] == "QingLong"
    for path, methods in document["paths"].items():
        assert path.startswith("/api/v3/")
        for method, operation in methods.items():
            assert operation["summary"], (method, path)
            assert "A view" not in operation.get("description", "")
            refused = operation["responses"]["401"]["content"]
            assert list(refused) == ["application/problem+json"]
            assert {"token": []} in operation["security"]
            in_path = [one for one in operation.get("parameters", []) if one["in"] == "path"]
            for parameter in in_path:
                assert parameter.get("description"), (path, parameter)
    identifiers = [one["operationId"] for many in document["paths"].values() for one in many.values()]
    assert len(identifiers) == len(set(identifiers))


def test_the_page_has_nothing_inline() -> None:
    assert Client().get("/api/v3/docs").status_code == 401
    answer = signed_in(member("viewer")).get("/api/v3/docs", headers={"Accept": "text/html,*/*;q=0.8"})
    assert answer.status_code == 200 and answer["Content-Type"].startswith("text/html")
    page = answer.content.decode()
    assert not re.search(r"<style|style=|\son\w+=|javascript:", page)
    sources = re.findall(r"<script([^>]*)>(.*?)</script>", page, re.S)
    assert sources and all("src=" in attributes and not text.strip() for attributes, text in sources)
    assert "script-src 'self'" in answer["Content-Security-Policy"]
    for name in re.findall(r'(?:src|href)="/static/([^"]+)"', page):
        assert finders.find(name), name

"""Webhooks: a secret address, optional signatures, each delivery once (api.md, "Trigger")."""

from __future__ import annotations

import hmac
import json
from typing import Any

import pytest
from django.test import Client

from apps.runs import payloads
from apps.runs.models import Run, Skip
from apps.triggers import services
from apps.triggers.api import hooks
from apps.triggers.errors import HookNotFound, TriggerDisabled
from apps.triggers.models import Trigger
from apps.triggers.services import hooks as service
from tests.runs.kit import grant, task
from tests.triggers.kit import change, fresh, grants, made, records, task_switch

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def _calm() -> None:
    hooks.calls.clear()
    hooks.guesses.clear()


def call(secret: str | None, body: Any = None, **headers: str) -> Any:
    data = body if isinstance(body, bytes | str) else b"" if body is None else json.dumps(body)
    return Client(enforce_csrf_checks=True).post(
        f"/hooks/{secret}", data, content_type="application/json",
        headers={name.replace("_", "-"): value for name, value in headers.items()},
    )  # fmt: skip


def signed(key: str, body: bytes) -> str:
    return "sha256=" + hmac.new(key.encode(), body, "sha256").hexdigest()


def test_a_call_starts_the_task_with_its_body() -> None:
    hook = made(task(), "webhook", input={"branch": "main", "by": "hook"})
    assert hook.secret is not None and hook.secret.startswith("ql3h_")
    answer = call(hook.secret, {"branch": "next", "n": [1, {"x": None}]})
    assert answer.status_code == 201
    run = Run.objects.get()
    assert answer.json() == {"run": {"id": str(run.pk)}, "replayed": False}
    assert (run.trigger_type, run.trigger_id, run.scheduled_for) == ("webhook", hook.trigger.pk, None)
    assert (run.triggered_by_type, run.triggered_by_id) == ("system", "webhook")
    assert payloads.open_input(run).input == {"branch": "next", "by": "hook", "n": [1, {"x": None}]}
    assert fresh(hook.trigger).last_run_id == run.pk
    assert call(hook.secret).status_code == 201


def test_the_secret_is_stored_as_a_digest_and_shown_in_no_repr() -> None:
    hook = made(task(), "webhook", signed=True)
    assert hook.secret and hook.signing_key
    row = Trigger.objects.values().get()
    for text in (repr(hook), repr(hook.trigger), json.dumps(row, default=str)):
        assert hook.secret not in text and hook.signing_key not in text
    assert row["secret_digest"] != hook.secret


def test_unknown_secrets_all_look_alike() -> None:
    hook = made(task(), "webhook")
    assert hook.secret is not None
    answers = [
        call(secret, {"a": 1})
        for secret in (
            "nothing",
            "ql3h_" + "x" * 43,
            hook.secret[:-1],
            hook.secret + "x",
            "x" * 3_000,
            "ql3h_ä",
        )
    ]
    for answer in answers:
        assert (answer.status_code, answer.content) == (404, answers[0].content)
    services.delete_trigger(*grants(), hook.trigger.task_id, hook.trigger.pk, 1)
    assert call(hook.secret).content == answers[0].content
    assert not Run.objects.exists()


def test_only_post() -> None:
    hook = made(task(), "webhook")
    for method in ("get", "put", "delete", "head", "options"):
        assert getattr(Client(), method)(f"/hooks/{hook.secret}").status_code == 405


def test_a_delivery_starts_once() -> None:
    hook = made(task(), "webhook")
    first = call(hook.secret, {"a": 1}, X_GitHub_Delivery="7")
    again = call(hook.secret, {"a": 1}, X_GitHub_Delivery="7")
    assert (first.status_code, again.status_code) == (201, 200)
    assert again.json() == {**first.json(), "replayed": True}
    other = call(hook.secret, {"a": 2}, X_GitHub_Delivery="7")
    assert (other.status_code, other.json()["code"]) == (409, "idempotency_key_reused")
    assert call(hook.secret, {"a": 1}, Idempotency_Key="8").status_code == 201
    assert Run.objects.count() == 2
    another = made(hook.trigger.task, "webhook")
    assert call(another.secret, {"a": 1}, X_GitHub_Delivery="7").status_code == 201, (
        "ids belong to their webhook"
    )
    assert call(hook.secret, {}, Idempotency_Key="x" * 201).status_code == 400
    run = Run.objects.order_by("pk")[0]
    assert run.idempotency_key == f"hook:{hook.trigger.pk}:7"


def test_signatures() -> None:
    hook = made(task(), "webhook", signed=True)
    assert hook.signing_key is not None
    body = b'{"a": 1}'
    right = signed(hook.signing_key, body)
    for headers in (
        {},
        {"X_Hub_Signature_256": ""},
        {"X_Hub_Signature_256": right[:-1]},
        {"X_Hub_Signature_256": right.removeprefix("sha256=")},
        {"X_Hub_Signature_256": signed("other", body)},
        {"X_Hub_Signature_256": "sha256=\u00e4"},
    ):
        answer = call(hook.secret, body, **headers)
        assert (answer.status_code, answer.json()["code"]) == (401, "signature_invalid")
    assert call(hook.secret, body + b" ", X_Hub_Signature_256=right).status_code == 401
    assert not Run.objects.exists()
    assert call(hook.secret, body, X_Hub_Signature_256=right).status_code == 201
    assert call(hook.secret, body, X_QingLong_Signature=right, Idempotency_Key="1").status_code == 201
    assert call(hook.secret, body, X_QingLong_Signature=right, Idempotency_Key="1").status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"[1]", b'"x"', b"7", b"null", b"{", b'{"a": NaN}', b'{"a": 1, "a": 2}', b"\xff", b'{"a": "\\ud800"}',
     b"[" * 5_000, b'{"a":' + b"[" * 100 + b"]" * 100 + b"}"],
)  # fmt: skip
def test_bodies_that_are_no_object(body: bytes) -> None:
    hook = made(task(), "webhook")
    answer = call(hook.secret, body)
    assert answer.status_code == 400, answer.content
    assert not Run.objects.exists()


def test_sizes() -> None:
    hook = made(task(), "webhook")
    fits = b'{"a":"' + b"x" * (65_536 - 100) + b'"}'
    assert call(hook.secret, fits).status_code == 201
    assert call(hook.secret, b'{"a":"' + b"x" * 65_536 + b'"}').status_code == 413
    grown = made(task("grown"), "webhook", input={"b": "y" * 60_000})
    assert call(grown.secret, {"a": "x" * 10_000}).status_code == 413
    assert Run.objects.count() == 1


def test_a_body_without_a_length_is_refused() -> None:
    hook = made(task(), "webhook")
    answer = Client().generic("POST", f"/hooks/{hook.secret}", headers={"Transfer-Encoding": "chunked"})
    assert (answer.status_code, Run.objects.count()) == (411, 0)


def test_only_json() -> None:
    hook = made(task(), "webhook")
    form = Client().post(f"/hooks/{hook.secret}", "a=1", content_type="application/x-www-form-urlencoded")
    assert (form.status_code, form.json()["code"]) == (415, "unsupported_media_type")
    assert "Content-Type: application/json" in form.json()["detail"]


def test_refused_calls_are_one_row() -> None:
    of = task()
    hook = made(of, "webhook")
    task_switch(of, False)
    for _ in range(3):
        answer = call(hook.secret)
        assert (answer.status_code, answer.json()["code"]) == (409, "task_disabled")
    assert records(hook.trigger) == [("task_disabled", 3)]
    task_switch(of, True)
    assert call(hook.secret).status_code == 201
    change(hook.trigger, enabled=False)
    assert call(hook.secret).json()["code"] == "trigger_disabled"
    assert records(hook.trigger) == [("task_disabled", 3), ("trigger_disabled", 1)]
    services.archive_project(grant("project.manage"), 1)
    change_back = Trigger.objects.filter(pk=hook.trigger.pk)
    change_back.update(enabled=True)
    assert call(hook.secret).json()["code"] == "project_archived"
    assert records(hook.trigger)[-1] == ("project_archived", 1)


def test_a_task_that_skips_answers_with_the_record() -> None:
    hook = made(task(concurrency="skip"), "webhook")
    assert call(hook.secret).status_code == 201
    answer = call(hook.secret)
    assert (answer.status_code, answer.json()["skip"]) == (409, str(Skip.objects.get().pk))


def test_too_many() -> None:
    hook = made(task(concurrency="skip"), "webhook")
    codes = [call(hook.secret).status_code for _ in range(hooks.CALLS + 1)]
    assert (codes[0], set(codes[1:-1]), codes[-1]) == (201, {409}, 429)
    other = made(task("other"), "webhook")
    assert call(other.secret).status_code == 201
    answers = [call("guess").status_code for _ in range(hooks.GUESSES + 1)]
    assert (set(answers[:-1]), answers[-1]) == ({404}, 429)
    assert int(call("guess")["Retry-After"]) <= 61
    assert call(other.secret).status_code == 201, "the right secret is not locked out by wrong ones"


def test_a_new_secret_ends_the_old_one() -> None:
    hook = made(task(), "webhook", signed=True)
    renewed = services.renew_secret(*grants(), hook.trigger.task_id, hook.trigger.pk, 1)
    assert renewed.secret != hook.secret and renewed.signing_key != hook.signing_key
    assert call(hook.secret).status_code == 404
    assert renewed.signing_key is not None
    assert (
        call(renewed.secret, b"{}", X_QingLong_Signature=signed(renewed.signing_key, b"{}")).status_code
        == 201
    )


def test_the_address_is_shown_once(time: Any) -> None:
    from tests.people import api, member

    of = task(slug="nightly")
    owner = api(member("owner"))
    url = f"projects/default/tasks/{of.slug}/triggers"
    body = owner("POST", url, {"kind": "webhook", "signed": True}).json()
    assert body["url"].startswith("/hooks/ql3h_") and body["signing_key"].startswith("ql3s_")
    shown = owner("GET", f"{url}/{body['id']}").json()
    assert body["url"] not in json.dumps(shown) and shown["signed"] is True
    renewed = owner("POST", f"{url}/{body['id']}/secret", None, If_Match='"1"').json()
    assert renewed["url"] != body["url"] and renewed["version"] == 2


@pytest.mark.parametrize("over", ["renewed", "deleted", "disabled"])
def test_what_ends_while_a_call_is_under_way_ends_it(over: str) -> None:
    """Between the look-up and the lock: "dead at once" holds for calls that have come in already."""
    made_in = task()
    hook = made(made_in, "webhook")
    found = service.find(str(hook.secret))
    if over == "renewed":
        services.renew_secret(*grants(), made_in.pk, hook.trigger.pk, 1)
    elif over == "deleted":
        services.delete_trigger(*grants(), made_in.pk, hook.trigger.pk, 1)
    else:
        change(hook.trigger, enabled=False)
    with pytest.raises(TriggerDisabled if over == "disabled" else HookNotFound):
        service.receive(found, service.Delivery(b""))
    assert not Run.objects.exists()

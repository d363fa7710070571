"""The outer contract, rule by rule, against a running panel (api.md, "Rules for every call")."""

from __future__ import annotations

import base64
import json
import re
import secrets
import urllib.request
from typing import Any
from urllib.parse import quote

import pytest

from tests.e2e.person import Answer, Api, House
from tests.e2e.up_kit import eventually

TASKS = "/projects/default/tasks"
UNKNOWN = "01890000-0000-7000-8000-000000000000"


@pytest.fixture(scope="module")
def api(house: House) -> Api:
    return house.api


@pytest.fixture(scope="module")
def done(api: Api) -> dict[str, Any]:
    """A run that ended well."""
    return api.until(api.start(api.make(shell="echo one; echo two")))


def problem(answer: Answer, status: int, code: str, *fields: str) -> dict[str, Any]:
    """Asserts a refusal in the form of RFC 9457."""
    assert answer.status == status, (answer.status, answer.text[:2000])
    assert answer.headers["Content-Type"] == "application/problem+json"
    body: dict[str, Any] = answer.json
    assert {"type", "title", "status", "code", "detail", "errors"} <= body.keys()
    assert (body["status"], body["code"]) == (status, code), body
    assert re.fullmatch(r"[a-z0-9_]+", body["code"])
    assert set(fields) <= body["errors"].keys(), body
    return body


# -- credentials ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "header", ["", "Bearer", "Bearer ql3t_" + "a" * 43, "Bearer x", "Basic YTpi", "Token abc", "bearer \xff"]
)
@pytest.mark.parametrize("path", ["/me", TASKS, f"/runs/{UNKNOWN}/log", "/schema", "/nothing/here"])
def test_missing_or_bad_credentials(api: Api, header: str, path: str) -> None:
    answer = api.call("GET", path, Authorization=header)
    if path == "/nothing/here":
        assert answer.status in (401, 404)
    else:
        problem(answer, 401, "not_authenticated")
        assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert "Location" not in answer.headers


def test_the_session_cookie_needs_the_csrf_token(house: House) -> None:
    answer = house.browser.get("/api/v3/me")
    assert answer.status == 200 and answer.json["subject"]["type"] == "user"
    request = urllib.request.Request(
        f"http://127.0.0.1:{house.up.port}/api/v3{TASKS}", b'{"name": "x", "shell": "true"}',
        {"Content-Type": "application/json"},
    )  # fmt: skip
    assert house.browser._open(request).status == 403


# -- what is sent ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", TASKS, {"name": "x", "shell": "true", "colour": "red"}),
        ("POST", TASKS, {"name": "x", "script": {"language": "python", "source": "1", "colour": "red"}}),
        ("POST", "/tokens", {"name": "x", "scopes": ["*"], "colour": "red"}),
        ("POST", "/projects", {"slug": "x", "name": "x", "colour": "red"}),
    ],
)
def test_an_unknown_field_is_an_error(api: Api, method: str, path: str, body: dict[str, Any]) -> None:
    answer = api.call(method, path, body)
    if path == "/tokens" and answer.status == 403:
        pytest.skip("tokens are made by fresh sessions only")
    found = problem(answer, 400, "invalid")["errors"]
    assert "colour" in found or "script" in found or "script.colour" in found, found


def test_an_unknown_field_of_start_and_stop(api: Api, done: dict[str, Any]) -> None:
    task = done["task"]["slug"]
    answer = api.call("POST", f"{TASKS}/{task}/runs", {"colour": 1}, Idempotency_Key="u")
    problem(answer, 400, "invalid", "colour")
    problem(api.call("POST", f"/runs/{done['id']}/stop", {"colour": 1}), 400, "invalid", "colour")


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("env", {"A": "x\0y"}), ("env", {"A=B": "x"}), ("env", {"": "x"}), ("env", {"A": 1}), ("env", []),
        ("shell", ""), ("shell", 1), ("command", []), ("command", "true"), ("timeout_ms", 999),
        ("timeout_ms", "soon"), ("timeout_ms", True), ("kill_grace_ms", -1), ("log_quota_bytes", 1),
        ("concurrency", "always"), ("max_parallel", 0), ("priority", 10**6), ("labels", ["a", "a" * 65]),
        ("labels", "a"), ("slug", "Not A Slug"), ("slug", UNKNOWN), ("name", ""), ("name", "x" * 256), ("name", None),
        ("work_dir", "a\0b"), ("enabled", "yes"),
    ],
)  # fmt: skip
def test_values_out_of_bounds(api: Api, field: str, value: Any) -> None:
    body = {"name": "x", **({} if field == "command" else {"shell": "true"}), field: value}
    answer = api.call("POST", TASKS, body)
    found = problem(answer, 400, "invalid")["errors"]
    assert any(name == field or name.startswith(f"{field}.") for name in found), found


def test_exactly_one_body(api: Api) -> None:
    problem(api.call("POST", TASKS, {"name": "x"}), 400, "invalid")
    problem(api.call("POST", TASKS, {"name": "x", "shell": "a", "command": ["b"]}), 400, "invalid")


@pytest.mark.parametrize(
    "raw",
    [b"{", b"[]", b"null", b'"x"', b'{"a": 1, "a": 2}', b'{"a": NaN}', b"\xff\xfe", b"", b'{"name":"\\ud800"}',
     b"[" * 100_000, b'{"priority": 1e999}', b'{"priority": ' + b"9" * 5000 + b"}"],
)  # fmt: skip
def test_what_is_no_object(api: Api, raw: bytes) -> None:
    answer = api.call("POST", TASKS, raw=raw)
    assert answer.status == 400, answer.text[:500]
    assert answer.headers["Content-Type"] == "application/problem+json"


def test_method_type_and_size(api: Api) -> None:
    answer = api.call("PUT", TASKS, {})
    problem(answer, 405, "method_not_allowed")
    assert {"GET", "POST"} <= set(answer.headers["Allow"].replace(" ", "").split(","))
    answer = api.call("POST", TASKS, raw=b"name=x", Content_Type="application/x-www-form-urlencoded")
    problem(answer, 415, "unsupported_media_type")
    answer = api.call("POST", TASKS, {"name": "x", "shell": "#" * 20_000_000})
    problem(answer, 413, "too_large")
    task = api.make(shell="true")
    answer = api.call(
        "POST", f"{TASKS}/{task['slug']}/runs", {"input": {"a": "x" * 65_536}}, Idempotency_Key="i"
    )
    problem(answer, 413, "input_too_large")
    problem(api.call("GET", "/no/such/route"), 404, "not_found")


# -- changes --------------------------------------------------------------------------------------------


def test_if_match(api: Api) -> None:
    task = api.make(shell="true")
    path = f"{TASKS}/{task['slug']}"
    tag = api.call("GET", path).headers["ETag"]
    assert tag == f'"{task["version"]}"'
    for method, body in (("PATCH", {"name": "y"}), ("DELETE", None)):
        problem(api.call(method, path, body), 428, "precondition_required")
        stale = problem(api.call(method, path, body, If_Match='"9999"'), 409, "version_conflict")
        assert stale["current_version"] == task["version"]
        problem(api.call(method, path, body, If_Match="*"), 400, "invalid", "If-Match")
    changed = api.call("PATCH", path, {"name": "y"}, If_Match=tag)
    assert changed.status == 200 and changed.headers["ETag"] != tag and changed.json["name"] == "y"
    problem(api.call("PATCH", path, {"name": "z"}, If_Match=tag), 409, "version_conflict")


def test_patch_replaces_whole_fields(api: Api) -> None:
    task = api.make(shell="true", env={"A": "1", "B": "2"}, timeout_ms=5000, labels=["x"])
    path = f"{TASKS}/{task['slug']}"

    def patch(**body: Any) -> Answer:
        return api.call("PATCH", path, body, If_Match=api.call("GET", path).headers["ETag"])

    after = patch(env={"C": "3"}).json
    assert after["env"] == {"C": "3"} and after["revision"] != task["revision"]
    assert patch(timeout_ms=None).json["timeout_ms"] is None
    after = patch(command=["true", "x"]).json
    assert after["command"] == ["true", "x"] and after["shell"] is None
    same = patch(
        id=task["id"], version=after["version"], revision=after["revision"], created_at=task["created_at"]
    )
    assert same.status == 200, same.text
    problem(patch(id=UNKNOWN), 400, "invalid", "id")


def test_archived_slugs_are_free_again(api: Api) -> None:
    slug = f"again-{secrets.token_hex(4)}"
    first = api.make(name="a", slug=slug, shell="true")
    problem(api.call("POST", TASKS, {"name": "b", "slug": slug, "shell": "true"}), 409, "slug_taken")
    tag = f'"{first["version"]}"'
    assert api.call("DELETE", f"{TASKS}/{slug}", If_Match=tag).status == 204
    second = api.make(name="b", slug=slug, shell="true")
    assert second["id"] != first["id"]
    assert api.ok("GET", f"{TASKS}/{slug}")["id"] == second["id"]
    assert api.ok("GET", f"{TASKS}/{first['id']}")["archived_at"] is not None
    answer = api.call("POST", f"{TASKS}/{first['id']}/runs", {}, Idempotency_Key="x")
    assert answer.status == 409, answer.text


# -- starting -------------------------------------------------------------------------------------------


def test_a_repeated_key(api: Api) -> None:
    task, other = api.make(shell="true"), api.make(shell="true")
    key = secrets.token_hex(8)
    path = f"{TASKS}/{task['slug']}/runs"
    first = api.call("POST", path, {"args": ["a"]}, Idempotency_Key=key)
    assert first.status == 201 and first.json["idempotency_key"] == key
    again = api.call("POST", path, {"args": ["a"]}, Idempotency_Key=key)
    assert again.status == 200 and again.json["id"] == first.json["id"]
    answer = api.call("POST", path, {"args": ["b"]}, Idempotency_Key=key)
    problem(answer, 409, "idempotency_key_reused")
    answer = api.call("POST", f"{TASKS}/{other['slug']}/runs", {"args": ["a"]}, Idempotency_Key=key)
    problem(answer, 409, "idempotency_key_reused")
    problem(api.call("POST", path, {}, Idempotency_Key="k" * 201), 400, "invalid", "Idempotency-Key")
    api.until(first.json["id"])


def test_a_key_is_not_demanded(api: Api) -> None:
    """Without one every call is a start of its own."""
    path = f"{TASKS}/{api.make(shell='true')['slug']}/runs"
    runs = [api.call("POST", path, {}) for _ in range(2)]
    assert [run.status for run in runs] == [201, 201]
    assert runs[0].json["id"] != runs[1].json["id"] and runs[0].json["idempotency_key"] is None


def test_skip_leaves_a_record(api: Api) -> None:
    task = api.make(shell="sleep 20", concurrency="skip", kill_grace_ms=100)
    run_id = api.start(task)
    answer = api.call("POST", f"{TASKS}/{task['slug']}/runs", {}, Idempotency_Key=secrets.token_hex(4))
    refusal = problem(answer, 409, "concurrency_skipped")
    skips = api.ok("GET", f"/projects/default/skips?task={task['slug']}")["items"]
    assert [skip["id"] for skip in skips] == [refusal["skip"]]
    assert skips[0]["blocking_run"] == run_id
    assert api.call("POST", f"/runs/{run_id}/stop").status == 202
    api.until(run_id)


def test_a_disabled_task(api: Api) -> None:
    task = api.make(shell="true", enabled=False)
    answer = api.call("POST", f"{TASKS}/{task['slug']}/runs", {}, Idempotency_Key="d")
    problem(answer, 409, "task_disabled")


def test_input_args_and_output(api: Api) -> None:
    task = api.make(
        shell='cat "$QINGLONG_INPUT"; echo; printf "%s|" "$@"; echo "{\\"n\\": 1}" > "$QINGLONG_OUTPUT"'
    )
    run_id = api.start(task, input={"行": [1, None, "x"]}, args=["a b", "", "$c"])
    assert api.until(run_id)["status"] == "succeeded"
    first, _, second = api.log(run_id).partition(b"\n")
    assert json.loads(first) == {"行": [1, None, "x"]} and second == b"a b||$c|"


def test_stopping(api: Api, done: dict[str, Any]) -> None:
    run_id = api.start(api.make(shell="sleep 30", kill_grace_ms=100))
    first = api.call("POST", f"/runs/{run_id}/stop", {"note": "x" * 200})
    assert first.status == 202
    second = api.call("POST", f"/runs/{run_id}/stop", {"note": "other"})
    assert second.status in (200, 409)  # it may have ended meanwhile
    ended = api.until(run_id)
    assert (
        ended["status"] == "cancelled" and ended["cancel_requested_at"] == first.json["cancel_requested_at"]
    )
    problem(api.call("POST", f"/runs/{run_id}/stop"), 409, "run_ended")
    problem(api.call("POST", f"/runs/{done['id']}/stop"), 409, "run_ended")
    problem(api.call("POST", f"/runs/{done['id']}/stop", {"note": "x" * 201}), 400, "invalid", "note")
    problem(api.call("POST", f"/runs/{UNKNOWN}/stop"), 404, "not_found")


def test_stopping_twice_is_answered_with_the_first(api: Api) -> None:
    source = "trap '' TERM; echo up; while :; do sleep 0.1; done"
    run_id = api.start(api.make(shell=source, kill_grace_ms=1500))
    eventually(lambda: api.call("GET", f"/runs/{run_id}/log").content == b"up\n", "the script")
    first = api.call("POST", f"/runs/{run_id}/stop", {"note": "one"})
    second = api.call("POST", f"/runs/{run_id}/stop", {"note": "two"})
    assert (first.status, second.status) == (202, 200)
    assert second.json["cancel_requested_at"] == first.json["cancel_requested_at"]
    run = api.until(run_id)
    assert run["status"] == "cancelled" and run["exit_code"] == 137


def test_a_deadline(api: Api) -> None:
    run_id = api.start(api.make(shell="sleep 30", timeout_ms=1000, kill_grace_ms=100))
    run = api.until(run_id)
    assert (run["status"], run["error_code"]) == ("timed_out", "EXECUTION_TIMED_OUT"), run


def test_retrying(api: Api, done: dict[str, Any]) -> None:
    key = secrets.token_hex(4)
    first = api.call("POST", f"/runs/{done['id']}/retry", Idempotency_Key=key)
    assert first.status == 201
    assert (first.json["retry_of"], first.json["trigger_type"]) == (done["id"], "run_manual_retry")
    again = api.call("POST", f"/runs/{done['id']}/retry", Idempotency_Key=key)
    assert again.status == 200 and again.json["id"] == first.json["id"]
    problem(api.call("POST", f"/runs/{done['id']}/retry", {"x": 1}, Idempotency_Key="r"), 400, "invalid")
    assert api.until(first.json["id"])["status"] == "succeeded"


# -- lists, events, logs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "limit", ["0", "201", "-1", "x", "1.5", "9999999999", "１", "1000000000000000000050"]
)
@pytest.mark.parametrize("path", [TASKS, "/projects/default/runs", "/projects/default/skips", "/projects"])
def test_limits(api: Api, path: str, limit: str) -> None:
    problem(api.call("GET", f"{path}?limit={quote(limit)}"), 400, "invalid", "limit")


def test_pages_and_cursors(api: Api) -> None:
    label = secrets.token_hex(4)
    made = {api.make(shell="true", labels=[label])["id"] for _ in range(5)}
    seen, cursor, pages = [], "", 0
    while True:
        page = api.ok("GET", f"{TASKS}?limit=2&label={label}{cursor and '&cursor=' + cursor}")
        seen += [task["id"] for task in page["items"]]
        pages += 1
        if page["next_cursor"] is None:
            break
        cursor = page["next_cursor"]
    assert pages == 3 and len(seen) == 5 and set(seen) == made
    # Bound to its list, its filters and its limit, and signed.
    problem(api.call("GET", f"{TASKS}?limit=3&label={label}&cursor={cursor}"), 409, "cursor_mismatch")
    problem(api.call("GET", f"{TASKS}?limit=2&cursor={cursor}"), 409, "cursor_mismatch")
    other = api.call("GET", f"/projects/default/skips?limit=2&cursor={cursor}")
    assert (other.status, other.json["code"]) in ((409, "cursor_mismatch"), (400, "cursor_invalid")), (
        other.text
    )
    flipped = ("b" if cursor[0] == "a" else "a") + cursor[1:]
    for bad in (flipped, cursor[:-1], "x", "a" * 3000, base64.urlsafe_b64encode(b"{}").decode()):
        problem(api.call("GET", f"{TASKS}?limit=2&label={label}&cursor={bad}"), 400, "cursor_invalid")


def test_filters_of_runs(api: Api, done: dict[str, Any]) -> None:
    runs = "/projects/default/runs"
    task = done["task"]["slug"]
    found = api.ok("GET", f"{runs}?task={task}&status=succeeded&trigger_type=api&since=2020-01-01T00:00:00Z")
    assert done["id"] in [run["id"] for run in found["items"]]
    assert api.ok("GET", f"{runs}?until=2020-01-01T00:00:00Z")["items"] == []
    problem(api.call("GET", f"{runs}?status=happy"), 400, "invalid", "status")
    problem(api.call("GET", f"{runs}?trigger_type=whim"), 400, "invalid", "trigger_type")
    problem(api.call("GET", f"{runs}?since=yesterday"), 400, "invalid", "since")
    problem(api.call("GET", f"{runs}?task=no-such-task"), 404, "not_found")


def test_events(api: Api, done: dict[str, Any]) -> None:
    path = f"/runs/{done['id']}/events"
    every = api.ok("GET", path)
    assert [event["sequence"] for event in every["items"]] == list(range(1, len(every["items"]) + 1))
    assert every["next_after"] is None and every["items"][-1]["type"] == "run.succeeded"
    page = api.ok("GET", f"{path}?limit=2")
    assert len(page["items"]) == 2 and page["next_after"] == 2
    page = api.ok("GET", f"{path}?after=2&limit=1")
    assert [event["sequence"] for event in page["items"]] == [3]
    for bad in ("limit=0", "limit=501", "after=-1", "after=x"):
        problem(api.call("GET", f"{path}?{bad}"), 400, "invalid", bad.partition("=")[0])
    assert api.ok("GET", f"{path}?limit=500")["items"] == every["items"]


def test_logs(api: Api, done: dict[str, Any]) -> None:
    path = f"/runs/{done['id']}/log"
    assert api.call("GET", f"{path}?attempt=1").content == b"one\ntwo\n"
    other = api.call("GET", f"{path}?attempt=2")
    assert other.status == 404 and other.json["code"] in ("not_found", "artifact_missing"), other.text
    part = api.call("GET", path, Range="bytes=4-")
    assert (part.status, part.content, part.headers["Content-Range"]) == (206, b"two\n", "bytes 4-7/8")
    refused = api.call("GET", path, Range="bytes=8-")
    assert problem(refused, 416, "range_not_satisfiable") and refused.headers["Content-Range"] == "bytes */8"
    head = api.call("HEAD", f"{path}?offset=4")
    assert (head.status, head.headers["Content-Length"], head.headers["X-Log-Size"]) == (200, "4", "8")
    for bad in ("offset=x", "limit=0", "limit=262145", "attempt=0"):
        problem(api.call("GET", f"{path}?{bad}"), 400, "invalid", bad.partition("=")[0])
    for odd in ("bytes=a-b", "lines=1-2", "bytes=0-1,3-4", "bytes=5-2"):
        assert api.call("GET", path, Range=odd).status in (200, 416)


# -- masking and scopes ---------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def stranger(house: House, api: Api) -> Api:
    """A token that is good, but whose project is another one."""
    slug = f"elsewhere-{secrets.token_hex(4)}"
    answer = api.call("POST", "/projects", {"slug": slug, "name": "Elsewhere"})
    assert answer.status == 201, answer.text
    page = house.browser.get("/panel/tokens/")
    assert page.status == 200
    token = make_token(house, project=slug)
    return Api(api.port, token)


def make_token(house: House, **body: Any) -> str:
    """A token by a fresh session of a browser, as the panel's page does it."""
    csrf = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', house.browser.get("/panel/tokens/").text)
    assert csrf
    home = f"http://127.0.0.1:{house.up.port}"
    request = urllib.request.Request(
        f"{home}/api/v3/tokens", json.dumps({"name": "t", "scopes": ["*"], **body}).encode(),
        {"Content-Type": "application/json", "X-CSRFToken": csrf[1], "Origin": home, "Referer": f"{home}/panel/"},
    )  # fmt: skip
    answer = house.browser._open(request)
    assert answer.status == 201, answer.text
    return str(answer.json["token"])


def test_no_role_looks_like_nothing_there(stranger: Api, api: Api, done: dict[str, Any]) -> None:
    task = done["task"]["slug"]
    for real, unreal in (
        (f"/runs/{done['id']}", f"/runs/{UNKNOWN}"), (f"/runs/{done['id']}/log", f"/runs/{UNKNOWN}/log"),
        (f"/runs/{done['id']}/events", f"/runs/{UNKNOWN}/events"), (f"{TASKS}/{task}", f"/projects/none/tasks/{task}"),
        ("/projects/default", "/projects/none"), ("/projects/default/audit", "/projects/none/audit"),
    ):  # fmt: skip
        hidden, missing = stranger.call("GET", real), stranger.call("GET", unreal)
        assert hidden.status == missing.status == 404, (real, hidden.status, missing.status)
        assert hidden.content == missing.content
        volatile = {"Date", "Content-Length", "X-Request-Id"}
        assert {k: v for k, v in hidden.headers.items() if k not in volatile} == {
            k: v for k, v in missing.headers.items() if k not in volatile
        }
    hidden = stranger.call("POST", f"/runs/{done['id']}/stop")
    assert hidden.content == stranger.call("POST", f"/runs/{UNKNOWN}/stop").content and hidden.status == 404


def test_a_read_only_token_changes_nothing(house: House, done: dict[str, Any]) -> None:
    """Lessons D22."""
    token = make_token(house, scopes=["task.read", "run.read"])
    reader = Api(house.up.port, token)
    task = done["task"]["slug"]
    assert reader.call("GET", f"{TASKS}/{task}").status == 200
    for method, path, body in (
        ("POST", f"{TASKS}/{task}/runs", {}), ("POST", TASKS, {"name": "x", "shell": "true"}),
        ("POST", f"/runs/{done['id']}/retry", None), ("POST", f"/runs/{done['id']}/stop", None),
        ("PATCH", f"{TASKS}/{task}", {"name": "x"}), ("DELETE", f"{TASKS}/{task}", None), ("GET", "/workers", None),
        ("POST", "/projects", {"slug": "a", "name": "a"}),
    ):  # fmt: skip
        headers = {"If_Match": '"1"', "Idempotency_Key": "r"}
        problem(reader.call(method, path, body, **headers), 403, "permission_denied")
    # Logs are masked: the same answer as for a run that does not exist.
    answer = reader.call("GET", f"/runs/{done['id']}/log")
    assert answer.status == 404 and answer.content == reader.call("GET", f"/runs/{UNKNOWN}/log").content

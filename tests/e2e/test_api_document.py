"""What the API answers is what its document says, for everybody who may ask: Schemathesis over a running panel."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from pathlib import Path

import pytest

from tests.e2e.person import NAME, PASSWORD, Api, House, manage

HOOKS = """
from urllib.parse import urlencode

import schemathesis


@schemathesis.hook
def filter_query(context, query):
    # Longer request lines are refused by the server in front of the API.
    return len(urlencode(query or {}, doseq=True)) < 3000
"""
# Not negative_data_rejection: it counts an empty `?until=` and a second `limit` as violations; the tests above
# say what is refused.
EVERY = ["*", "policy.manage", "secret.manage", "token.manage", "approval.decide", "approval.recover"]
# Python 3.11 fails at times where two threads read a lambda's source at once, which is what takes examples apart:
# "AST constructor recursion depth mismatch".
WORKERS = "1"
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def _issue(house: House, name: str) -> str:
    """A token of a person, for all that its role allows."""
    arguments = ("--username", name, "--name", "t", "--scopes", *EVERY)
    return manage(house.up.home, "create_token", *arguments, **house.extra).split()[-1]


def _token_of(house: House, role: str) -> str:
    """The token of the first person, or of somebody or something with another role in the project `contract`."""
    first = _issue(house, NAME)
    if role == "owner":
        return first
    root, name = Api(house.up.port, first), f"{role}-{secrets.token_hex(3)}"
    if role == "agent":
        made = root.ok("POST", "/applications", {"type": "agent", "name": name})
        who = {"subject_type": "agent", "subject_id": made["id"], "role": "admin"}
    else:
        made = root.ok("POST", "/people", {"username": name, "password": PASSWORD})
        who = {"subject_type": "user", "subject_id": made["id"], "role": role}
    if role != "stranger":
        change = {**who, "expected_version": 0, "mutation_id": secrets.token_hex(8)}
        root.ok("POST", "/projects/contract/role-bindings", change)
    if role != "agent":
        return _issue(house, name)
    return str(root.ok("POST", f"/applications/{made['id']}/tokens", {"name": "t", "scopes": EVERY})["token"])


@pytest.fixture(scope="module")
def things(house: House) -> dict[str, str]:
    """One of each kind in a project of its own."""
    house.api.ok("POST", "/projects", {"slug": "contract", "name": "Contract"})
    task = house.api.ok("POST", "/projects/contract/tasks", {"name": "a", "slug": "a", "shell": "echo a"})
    run = house.api.ok("POST", "/projects/contract/tasks/a/runs", {}, Idempotency_Key="c")
    house.api.until(run["id"])
    return {"p": "contract", "t": "a", "id": run["id"], "revision": task["revision"]}


@pytest.mark.parametrize("role", ["owner", "operator", "viewer", "agent", "stranger"])
def test_answers_conform_to_the_document(
    house: House, things: dict[str, str], tmp_path: Path, role: str
) -> None:
    """Schemathesis over every operation, bounded and seeded: no 5xx, and what comes back is what is written."""
    lines = [f'"path.{name}" = "{value}"\n' for name, value in things.items()]
    (tmp_path / "schemathesis.toml").write_text("[parameters]\n" + "".join(lines))
    (tmp_path / "hooks.py").write_text(HOOKS)
    seconds = int(os.environ.get("QL_E2E_SCHEMA_SECONDS", "20"))
    command = [
        str(Path(sys.executable).with_name("schemathesis")), "run",
        f"http://127.0.0.1:{house.up.port}/api/v3/schema?format=json",
        "-H", f"Authorization: Bearer {_token_of(house, role)}",
        "--checks", CHECKS, "--phases", "coverage,fuzzing", "--max-examples", "5", "--seed", "7", "--workers", WORKERS,
        # The owner reaches most of what can go wrong; the others are refused early.
        "--max-time", str(seconds if role == "owner" else max(1, seconds // 3)), "--no-color", "--warnings", "off",
        "--request-timeout", "20", "--generation-database", "none", "--continue-on-failure",
        # What this token itself rests on, and what would leave nothing to look at.
        "--exclude-path-regex", "/(tokens/|archive|drain|role-bindings)",
    ]  # fmt: skip
    ended = subprocess.run(
        command, capture_output=True, text=True, timeout=150, check=False, cwd=tmp_path,
        env={**os.environ, "SCHEMATHESIS_HOOKS": "hooks", "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-12_000:]
    assert "Traceback" not in house.up.output, house.up.output[-6000:]

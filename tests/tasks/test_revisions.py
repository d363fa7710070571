from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core import canonical, clock
from apps.core.errors import InvalidInput
from apps.tasks import revisions
from apps.tasks.execution import LANGUAGES, Command, Execution, Script, Shell, from_template, to_template
from apps.tasks.revisions import Revision

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=20)
BODIES = st.one_of(
    st.builds(Command, st.lists(TEXT, min_size=1, max_size=4).map(tuple)),
    st.builds(Shell, TEXT),
    st.builds(Script, st.sampled_from(LANGUAGES), TEXT, st.lists(TEXT, max_size=4).map(tuple)),
)
EXECUTIONS = st.builds(
    Execution,
    body=BODIES,
    work_dir=st.none() | TEXT,
    timeout_ms=st.none() | st.integers(1_000, 10**9),
    kill_grace_ms=st.integers(0, 600_000),
    log_quota_bytes=st.integers(65_536, 10**9),
    before=st.none() | TEXT,
    after=st.none() | TEXT,
)


def revision(execution: Execution, **changes: Any) -> Revision:
    values: dict[str, Any] = {
        "project_id": "default",
        "task_id": "t",
        "task_revision": "1",
        "executor_type": "local_process",
        "execution": execution,
        "context_ref": "c",
        "created_at": clock.from_ms(1_000),
        "created_by": ("user", "u"),
        **changes,
    }
    return Revision(**values)


@given(EXECUTIONS)
def test_templates_round_trip(execution: Execution) -> None:
    document = to_template(execution)
    text = canonical.ordered(document)
    assert from_template(canonical.loads(text)) == execution
    assert canonical.ordered(to_template(from_template(json.loads(text)))) == text


@given(EXECUTIONS, EXECUTIONS)
def test_equal_digests_mean_equal_executions(one: Execution, two: Execution) -> None:
    assert (revision(one).digest == revision(two).digest) == (one == two)


def test_time_and_author_are_not_part_of_the_digest() -> None:
    first = revision(Execution(Shell("a")))
    assert (
        first.digest
        == revision(Execution(Shell("a")), created_at=clock.now(), created_by=("user", "b")).digest
    )
    for name in ("project_id", "task_id", "task_revision", "context_ref"):
        assert first.digest != revision(Execution(Shell("a")), **{name: "other"}).digest


@pytest.mark.parametrize(
    "document",
    [
        None, [], {}, {"body": None}, {"body": {"kind": "shell"}}, {"body": {"kind": "shell", "text": 1}},
        {"body": {"kind": "command", "argv": []}}, {"body": {"kind": "command", "argv": [1]}},
        {"body": {"kind": "command", "argv": "ls"}}, {"body": {"kind": "shell", "text": "a\0"}},
        {"body": {"kind": "script", "language": "ruby", "source": "", "args": []}},
        {"body": {"kind": "docker"}}, {"body": {"kind": "shell", "text": "a"}, "more": 1},
        {"body": {"kind": "shell", "text": "a"}, "timeout_ms": True},
        {"body": {"kind": "shell", "text": "a"}, "work_dir": 1},
    ],
)  # fmt: skip
def test_a_strange_template_is_refused(document: Any) -> None:
    with pytest.raises(ValueError, match=r"."):
        from_template(document)


@pytest.mark.django_db
def test_resolve_refuses_impossible_ids_and_knows_nothing_of_absent_ones() -> None:
    for key in (("", "t", "1"), ("p", "x" * 129, "1"), ("p", "t", "a\n")):
        with pytest.raises(InvalidInput):
            revisions.resolve(*key)
    assert revisions.resolve("p", "t", "1") is None
    assert revisions.resolve_many([]) == {}


@pytest.mark.django_db
def test_many_are_one_query(django_assert_num_queries: Any) -> None:
    made = [revision(Execution(Shell(str(index))), task_id=f"t{index}") for index in range(3)]
    for item in made:
        revisions.insert(item)
    with django_assert_num_queries(1):
        found = revisions.resolve_many([*(item.key for item in made), ("default", "t9", "1")])
    assert found == {item.key: item for item in made}


def test_source_stays_out_of_repr() -> None:
    for body in (
        Command(("secret-text",)),
        Shell("secret-text"),
        Script("python", "secret-text", ("secret-text",)),
    ):
        assert "secret-text" not in repr(Execution(body, before="secret-text", after="secret-text"))

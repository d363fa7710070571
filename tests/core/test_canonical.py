"""Canonical JSON: equal values have one text, and only JSON has a text."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apps.core import canonical
from apps.core.canonical import NotCanonical

VECTORS: list[tuple[Any, str]] = [
    ({}, "{}"),
    ([], "[]"),
    (None, "null"),
    ('ü\u2028"\\\n\x7f\x00', '"ü\u2028\\"\\\\\\n\x7f\\u0000"'),
    ({"b": 1, "a": [True, False, None]}, '{"a":[true,false,null],"b":1}'),
    ({"é": 1, "z": 2, "E": 3, "ﬀ": 4, "😀": 5}, '{"E":3,"z":2,"é":1,"ﬀ":4,"😀":5}'),
    (1.0, "1"),
    (-0.0, "0"),
    (0.0, "0"),
    (1e20, "100000000000000000000"),
    (-5.0, "-5"),
    (1.5, "1.5"),
    (1e-7, "1e-07"),
    (2**70, str(2**70)),
    ((1, (2,)), "[1,[2]]"),
]


@pytest.mark.parametrize(("value", "text"), VECTORS)
def test_vectors(value: Any, text: str) -> None:
    assert canonical.dumps(value) == text


def test_digest_is_of_the_text() -> None:
    # printf '{"a":1,"b":[2]}' | sha256sum
    assert canonical.digest({"b": [2.0], "a": 1}) == canonical.sha256('{"a":1,"b":[2]}')
    assert canonical.sha256("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
    assert canonical.domain_digest("d", "a", "b") == canonical.sha256(b"d\0a\0b")
    assert canonical.domain_digest("d", "ab") != canonical.domain_digest("d", "a", "b")
    with pytest.raises(NotCanonical):
        canonical.domain_digest("d", "a\0b")


@pytest.mark.parametrize(
    "value",
    [math.nan, math.inf, -math.inf, b"x", bytearray(b"x"), {1: 2}, {None: 1}, {1, 2}, object(), 1j, "\ud800",
     {"\udfff": 1}, [math.nan], {"a": {"b": b""}}],
)  # fmt: skip
def test_what_has_no_text(value: Any) -> None:
    with pytest.raises(NotCanonical):
        canonical.dumps(value)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def test_depth() -> None:
    canonical.dumps(nested(64))
    for depth in (65, 100_000):
        with pytest.raises(NotCanonical):
            canonical.dumps(nested(depth))
    endless: list[Any] = []
    endless.append(endless)
    with pytest.raises(NotCanonical):
        canonical.dumps(endless)


def test_size_counts_bytes() -> None:
    assert canonical.dumps("é" * 9, max_bytes=20) == '"ééééééééé"'
    with pytest.raises(NotCanonical):
        canonical.dumps("é" * 9, max_bytes=19)


@pytest.mark.parametrize(
    "text",
    ["", "{", "nul", '{"a":1,"a":2}', '[{"a":{"b":1,"b":1}}]', "NaN", "[Infinity]", "-Infinity", "1 2", "'a'",
     "[1,]", b"\xff", "[" * 100_000, "1e999", "-1e999", "1" * 5_000],
)  # fmt: skip
def test_what_is_not_read(text: str | bytes) -> None:
    with pytest.raises(NotCanonical):
        canonical.loads(text)


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"])),
    lambda inner: (
        st.lists(inner, max_size=5)
        | st.dictionaries(st.text(st.characters(exclude_categories=["Cs"]), max_size=5), inner, max_size=5)
    ),
    max_leaves=20,
)


@given(JSON)
@settings(max_examples=200, deadline=None)
def test_round_trip(value: Any) -> None:
    text = canonical.dumps(value)
    read = canonical.loads(text)
    assert read == value
    assert canonical.dumps(read) == text
    assert canonical.dumps(json.loads(json.dumps(value))) == text


@given(
    st.dictionaries(st.text(st.characters(exclude_categories=["Cs"])), st.integers(), max_size=8),
    st.randoms(),
)
@settings(max_examples=100, deadline=None)
def test_the_order_of_keys_does_not_matter(value: dict[str, int], random: Any) -> None:
    items = list(value.items())
    random.shuffle(items)
    assert canonical.digest(dict(items)) == canonical.digest(value)

"""Taking secrets out of a stream: all forms, any cuts, nothing else touched (lessons D16, secrets-and-artifacts §5)."""

from __future__ import annotations

import base64
import json
import shlex
import urllib.parse
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from apps.artifacts.places import MARK
from apps.dispatch.launcher import anchors
from apps.dispatch.launcher.forms import SHORTEST, forms, too_short
from apps.dispatch.launcher.masker import Masker

ENGINES = [pytest.param(anchors.engine_folder(), id="hyperscan"), pytest.param(None, id="plain")]
ENGINE = anchors.engine_folder()
calm = settings(deadline=None)


def masked(masker: Masker, chunks: Sequence[bytes]) -> tuple[bytes, list[int]]:
    """The whole text that comes out, and the secrets of its places."""
    text, places = b"", []
    pieces = [piece for chunk in chunks for piece in used(masker.feed(memoryview(chunk)))]
    for piece in [*pieces, *used(masker.flush())]:
        if isinstance(piece, bytes):
            text += piece
        else:
            text += MARK if piece[0] else b""
            places.append(piece[1])
    return text, places


def used(pieces: Sequence[memoryview | tuple[bool, int]]) -> list[bytes | tuple[bool, int]]:
    return [bytes(piece) if isinstance(piece, memoryview) else piece for piece in pieces]


def once(text: bytes, *values: str, engine: str | None = ENGINE) -> bytes:
    return masked(Masker(tuple((f"S{n}", value) for n, value in enumerate(values)), engine), [text])[0]


def cut(text: bytes, at: Sequence[int]) -> list[bytes]:
    edges = sorted({0, len(text), *(place % (len(text) + 1) for place in at)})
    return [text[first:end] for first, end in pairwise(edges)]


# Every encoder that scripts use, as libraries have it: none of the product's own code.
def b64(value: str, before: int = 0, after: int = 0) -> str:
    return base64.b64encode(b"\xa5" * before + raw(value) + b"\x5a" * after).decode()


def raw(value: str) -> bytes:
    return value.encode("utf-8", "surrogateescape")


ENCODERS: dict[str, Callable[[str], str]] = {
    "plain": lambda value: value,
    "base64": b64,
    "base64 unpadded": lambda value: b64(value).rstrip("="),
    "base64 url-safe": lambda value: base64.urlsafe_b64encode(raw(value)).decode(),
    **{
        f"base64 {before} before, {after} after": partial(b64, before=before, after=after)
        for before in range(4)
        for after in range(3)
    },
    "base64 of a line": lambda value: b64(value + "\n"),
    "hex": lambda value: raw(value).hex(),
    "HEX": lambda value: raw(value).hex().upper(),
    "quote": lambda value: urllib.parse.quote(raw(value)),
    "quote all": lambda value: urllib.parse.quote(raw(value), safe=""),
    "quote_plus": lambda value: urllib.parse.quote_plus(raw(value)),
    "quote, lower case": lambda value: lower_escapes(urllib.parse.quote(raw(value), safe="")),
    "as JavaScript quotes": lambda value: urllib.parse.quote(raw(value), safe="!*'()~"),
    "JSON": lambda value: json.dumps(value),
    "JSON in UTF-8": lambda value: json.dumps(value, ensure_ascii=False),
    "JSON as PHP has it": lambda value: json.dumps(value).replace("/", "\\/"),
    "JSON as Go has it": lambda value: json.dumps(value, ensure_ascii=False)
    .replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026"),
    "shlex": shlex.quote,
    "set -x": lambda value: "'" + value.replace("'", "'\\''") + "'",
    "repr": repr,
    "repr of bytes": lambda value: repr(raw(value)),
    "CRLF": lambda value: value.replace("\r\n", "\n").replace("\n", "\r\n"),
}  # fmt: skip


def lower_escapes(text: str) -> str:
    parts = text.split("%")
    return parts[0] + "".join(f"%{part[:2].lower()}{part[2:]}" for part in parts[1:])


values = st.one_of(
    st.text(st.characters(min_codepoint=33, max_codepoint=126), min_size=SHORTEST, max_size=60),
    st.text(
        st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=SHORTEST, max_size=40
    ),
    st.text("ab\n\"'/\\&% +é", min_size=SHORTEST, max_size=40),
).filter(lambda value: not too_short(value))


@calm
@given(
    secrets=st.lists(values, min_size=1, max_size=4, unique=True),
    printed=st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(sorted(ENCODERS)), st.binary(max_size=12)), max_size=6
    ),
    at=st.lists(st.integers(0, 2_000), max_size=12),
    engine=st.sampled_from([ENGINE, None]),
)
def test_no_form_of_any_secret_comes_through_wherever_output_is_cut(
    secrets: list[str], printed: list[tuple[int, str, bytes]], at: list[int], engine: str | None
) -> None:
    parts, told = [], set()
    for number, encoder, noise in printed:
        index = number % len(secrets)
        parts += [noise, b"<", raw(ENCODERS[encoder](secrets[index].strip())), b">"]
        told.add(index)
    output = b"".join(parts)
    masker = Masker(tuple((f"S{n}", value) for n, value in enumerate(secrets)), engine)
    text, places = masked(masker, cut(output, at))
    for value in secrets:
        for form in forms(value, 0):
            # The mark itself may be a form's: `*****` is a value like any other.
            assert form.text not in text or set(form.text) <= set(MARK)
    assert told <= set(places)
    again = Masker(tuple((f"S{n}", value) for n, value in enumerate(secrets)), engine)
    assert masked(again, [output]) == (text, places)


@calm
@given(secret=values, encoder=st.sampled_from(sorted(ENCODERS)))
def test_nothing_but_framing_is_left_of_a_printed_secret(secret: str, encoder: str) -> None:
    bare = secret.strip()
    whole = raw(ENCODERS[encoder](bare))
    left = once(whole, secret).replace(MARK, b"")
    # What encoders put around: quotes, padding, a foreign byte's digits, the end of a line.
    assert len(left) <= 10
    assert not any(
        left.count(part)
        for part in {raw(bare)[n : n + 4] for n in range(len(raw(bare)) - 3)}
        if b"\\" not in part
    )


@calm
@given(
    secrets=st.lists(values, min_size=1, max_size=5),
    output=st.binary(max_size=400),
    at=st.lists(st.integers(0, 400)),
)
def test_output_without_secrets_passes_byte_for_byte(
    secrets: list[str], output: bytes, at: list[int]
) -> None:
    every = [form for value in secrets for form in forms(value, 0)]
    assume(not any(form.text in output for form in every))
    halves = [form.text[:end] for form in every for end in range((len(form.text) + 1) // 2, len(form.text))]
    assume(not output.endswith(tuple(halves)))
    text, places = masked(Masker(tuple((f"S{n}", v) for n, v in enumerate(secrets)), ENGINE), cut(output, at))
    assert text == output
    assert places == []


@calm
@given(values)
def test_forms_are_long_enough_to_be_looked_for(value: str) -> None:
    found = forms(value, 0)
    assert found
    assert min(len(form.text) for form in found) >= SHORTEST
    assert len({form.text for form in found}) == len(found)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("value", ["a\r\nbb", "x7\r\n9k", "a\r\nb\r\nc"])
def test_a_short_secret_is_masked_whichever_way_its_line_ends_are_written(
    value: str, engine: str | None
) -> None:
    for end in ("\n", "\r\n"):
        printed = value.replace("\r\n", end).encode()
        assert once(b"<" + printed + b">", value, engine=engine) == b"<" + MARK + b">"
        assert once(b"and " + printed.hex().encode(), value, engine=engine) == b"and " + MARK


@pytest.mark.parametrize("engine", ENGINES)
def test_secrets_that_overlap_and_lie_within_each_other_are_one_place(engine: str | None) -> None:
    masker = Masker((("outer", "alpha-beta-gamma"), ("inner", "beta-"), ("next", "gamma-delta")), engine)
    text, places = masked(masker, [b"<alpha-beta-gam", b"ma-delta> beta- beta"])
    assert text == b"<***> *** beta"
    assert places == [0, 1, 2, 1]


def test_the_same_value_under_two_names_is_told_of_both() -> None:
    masker = Masker((("A", "hunter2-hunter2"), ("B", "hunter2-hunter2")), ENGINE)
    assert masked(masker, [b"hunter2-hunter2"]) == (b"***", [0, 1])
    assert masker.names == ("A", "B")


def test_only_the_beginning_of_a_form_is_held_back() -> None:
    masker = Masker((("A", "hunter2-secret"),), ENGINE)
    assert used(masker.feed(memoryview(b"Password: "))) == [b"Password: "]
    assert used(masker.feed(memoryview(b"hunter"))) == []
    assert used(masker.feed(memoryview(b"s! "))) == [b"hunters! "]
    assert used(masker.feed(memoryview(b"Continue? [y/N] hunter2-secre"))) == [b"Continue? [y/N] "]
    assert used(masker.feed(memoryview(b"t"))) == [(True, 0)]
    short = Masker((("A", "Qu7x!"),), ENGINE)
    assert used(short.feed(memoryview(b"> Qu7x!"))) == [b"> ", (True, 0)]


def test_a_beginning_that_is_half_of_a_secret_is_masked_when_nothing_follows() -> None:
    assert once(b"x hunter2-s", "hunter2-secret") == b"x ***"
    assert once(b"x hunte", "hunter2-secret") == b"x hunte"
    assert once(b"x hunter2", "hunter2x") == b"x ***"
    assert once(b"x hunt", "hunter2x") == b"x hunt"


def test_a_value_inside_longer_base64_goes_with_the_digits_it_shares() -> None:
    for before in range(6):
        for after in range(3):
            text = base64.b64encode(b"user:"[:before] + b"hunter2-secret" + b"@host"[:after])
            left = once(text, "hunter2-secret").split(MARK)
            assert len(left) == 2
            # Whole digits of the neighbours only: nothing of what is left depends on the secret.
            other = base64.b64encode(b"user:"[:before] + b"\xff" * 14 + b"@host"[:after])
            assert other.startswith(left[0])
            assert other.endswith(left[1])


def test_lines_of_a_value_are_secrets_too_when_they_are_long_enough() -> None:
    key = "-----BEGIN KEY-----\nMIIEvQIBADANBgkq\nab\nhkiG9w0BAQEFAASC\n-----END KEY-----\n"
    text = once(
        b"one MIIEvQIBADANBgkq\r\ntwo ab\nthree hkiG9w0BAQEFAASC\n" + key.replace("\n", "\r\n").encode(), key
    )
    assert text == b"one ***\r\ntwo ab\nthree ***\n***\r\n"


def test_long_base64_is_known_in_wrapped_lines() -> None:
    value = "".join(chr(33 + n % 90) for n in range(200))
    for width in (76, 64):
        whole = base64.b64encode((value + "\n").encode())
        wrapped = b"\n".join(whole[at : at + width] for at in range(0, len(whole), width)) + b"\n"
        assert set(once(wrapped, value).split(b"\n")) <= {MARK, b""}


@pytest.mark.parametrize(
    "value", ["", "    ", "true", "1234", "*****", "aaaaaaaa", "False", "localhost", " abcd\n"]
)
def test_plain_values_are_refused(value: str) -> None:
    assert too_short(value)
    masker = Masker((("PLAIN", value), ("GOOD", "hunter2-secret")), ENGINE)
    assert masker.refused == (("PLAIN",) if value else ())
    assert masked(masker, [f"<{value}>hunter2-secret".encode()])[0] == f"<{value}>***".encode()


def test_with_nothing_to_look_for_everything_passes_at_once() -> None:
    masker = Masker((("PLAIN", "true"),), ENGINE)
    assert used(masker.feed(memoryview(b"\xff\xfe true"))) == [b"\xff\xfe true"]
    assert masker.flush() == []


def test_both_ways_of_finding_agree() -> None:
    texts = [b"abcab", b"bcabc", b"zzzzz", b"ab\xff\x01c", b"abcabcab"]
    data = memoryview(bytearray(b"..abcabcab\xff\x01c zzzzzzz\x00ab\xff\x01c"))
    fast, plain = anchors.finder(texts, ENGINE), anchors.finder(texts, None)
    assert sorted(fast(data)) == sorted(plain(data))
    assert len(plain(data)) == 9
    assert list(fast(data[:0])) == list(plain(data[:0])) == []


def test_thousands_of_forms_are_found() -> None:
    secrets = tuple((f"S{n}", f"secret-{n * 7919:09d}-value") for n in range(600))
    masker = Masker(secrets, ENGINE)
    text, places = masked(masker, [b" ".join(value.encode() for _, value in secrets)])
    assert text == b" ".join([MARK] * 600)
    assert places == list(range(600))

"""The forms in which a secret can come to stand in output, and which values are too plain to be looked for.

Standard library only: the supervisor of a script looks for these forms, the panel warns of values it cannot mask.

Forms of a value, white space around it left out: as it is; with CRLF and with LF; each line of it that is long enough;
base64, standard and URL-safe, wherever the value lies in what was encoded, and wrapped at 76 or 64 characters where it
was encoded by itself; hex; URL-encoded (all but letters and digits, or as Python, browsers and paths do it, `+` for a
space); JSON (with and without `\\u`, with `\\/`, with `<>&` escaped); quoted by a shell and by Python's `repr`;
hexadecimal digits in either case. Not known: what was compressed, encrypted or turned round, other alphabets, hex with
gaps, escapes of HTML, an escape within another.
"""

from __future__ import annotations

# Below this every second line of an ordinary log would be full of marks: `true`, `null`, a port, a year.
SHORTEST = 5
_PLAIN = frozenset({"false", "undefined", "default", "enabled", "disabled", "localhost"})

_DIGITS = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"
_URL_SAFE = bytes.maketrans(b"+/", b"-_")
_WRAPPED = (76, 64)
_ALPHANUMERIC = frozenset(_DIGITS[:62])
# What URL-encoding leaves as it is beside letters and digits.
_URL_KEPT = tuple([_ALPHANUMERIC | set(kept) for kept in (b"", b"_.-~", b"_.-~/", b"_.-~!*'()")])
_SHELL_KEPT = _ALPHANUMERIC | set(b"%+,-./:=@_") | set(range(128, 256))
_JSON_SHORT = {8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\"}


def too_short(value: str) -> bool:
    """Whether a secret's value cannot be masked: under 5 characters, one character repeated, or a word of every log.

    White space around it does not count. Such a value is given to the script all the same; its log says so.
    """
    bare = value.strip()
    return len(bare) < SHORTEST or len(set(bare)) == 1 or bare.lower() in _PLAIN


class Form:
    """One text to look for; `owner` is the number of its secret.

    At its ends a digit of base64 may be the secret's in part: one of `before` or `after`.
    """

    __slots__ = ("after", "before", "owner", "text")

    def __init__(self, text: bytes, owner: int, before: bytes = b"", after: bytes = b"") -> None:
        self.text = text
        self.owner = owner
        self.before = before
        self.after = after


def forms(value: str, owner: int) -> list[Form]:
    """Every form of a value that is not `too_short`, each text once.

    None is shorter than SHORTEST bytes, but for values of that length whose line ends are written shorter.
    """
    bare = value.strip()
    unix = bare.replace("\r\n", "\n")
    texts = []
    split: list[Form] = []
    for whole in {bare: 0, unix: 0, unix.replace("\n", "\r\n"): 0}:
        raw = _bytes(whole)
        texts += [raw, raw.hex().encode(), raw.hex().upper().encode(), *_url(raw), *_quoted(whole, raw)]
        texts += [_bytes(text) for text in _json(whole)]
        texts += _wrapped(raw)
        split += _base64(raw, owner)
    texts += [_bytes(line.strip()) for line in unix.splitlines() if not too_short(line)]
    found = {form.text: form for form in split}
    found.update({text: Form(text, owner) for text in texts if text not in found})
    return list(found.values())


def _bytes(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")


def _url(raw: bytes) -> list[bytes]:
    texts = []
    for kept in _URL_KEPT:
        for pattern in ("%%%02X", "%%%02x"):
            text = "".join([chr(byte) if byte in kept else pattern % byte for byte in raw])
            texts += [text.encode(), text.replace("%20", "+").encode()]
    return texts


def _quoted(whole: str, raw: bytes) -> list[bytes]:
    return [
        raw.replace(b"'", b"'\\''"),
        raw.replace(b"'", b"'\"'\"'"),
        b"".join([b"%c" % byte if byte in _SHELL_KEPT else b"\\%c" % byte for byte in raw]),
        # As Python shows it alone, and beside either quote.
        *[_bytes(text) for text in (repr(whole)[1:-1], repr(whole + "'")[1:-2], repr(f"{whole}'\"")[1:-4])],
        repr(raw)[2:-1].encode(),
    ]


def _json(whole: str) -> list[str]:
    plain = "".join(
        [_JSON_SHORT.get(ord(char)) or (char if char >= " " else f"\\u{ord(char):04x}") for char in whole]
    )
    texts = []
    for text in (plain, plain.replace("/", "\\/")):
        careful = "".join([f"\\u{ord(char):04x}" if char in "<>&" else char for char in text])
        for variant in (text, careful):
            texts += [variant, _ascii(variant, "\\u%04x"), _ascii(variant, "\\u%04X")]
    return texts


def _ascii(text: str, pattern: str) -> str:
    """Without characters above 126; those above U+FFFF as two escapes, as JSON has them."""
    done = []
    for char in text:
        code = ord(char)
        if code < 127:
            done.append(char)
        elif code < 0x10000:
            done.append(pattern % code)
        else:
            done.append(pattern % (0xD7C0 + (code >> 10)) + pattern % (0xDC00 + (code & 0x3FF)))
    return "".join(done)


def _wrapped(raw: bytes) -> list[bytes]:
    """The lines of base64 that was encoded by itself, with a line's end behind it or without."""
    from binascii import b2a_base64

    lines = []
    for whole in (b2a_base64(raw, newline=False), b2a_base64(raw + b"\n", newline=False)):
        for width in _WRAPPED:
            if len(whole) > width:
                lines += [whole[at : at + width] for at in range(0, len(whole), width)]
    return [line for line in lines if len(line) >= SHORTEST]


def _base64(raw: bytes, owner: int) -> list[Form]:
    """As it reads after any number of other bytes and before any: the digits that are the value's alone."""
    # Imported late: it is a library of its own, which runs without secrets do without.
    from binascii import b2a_base64

    found = []
    for shift in range(3):
        digits = b2a_base64(bytes(shift) + raw, newline=False)
        bits = 8 * (shift + len(raw))
        first, end = (8 * shift + 5) // 6, bits // 6
        before = _sharing(digits[first - 1], 6 * first - 8 * shift, low=True) if shift else b""
        after = _sharing(digits[end], bits - 6 * end, low=False) if bits % 6 else b""
        parts = (digits[first:end], before, after)
        for text, left, right in (parts, [part.translate(_URL_SAFE) for part in parts]):
            found.append(Form(text, owner, left, right))
    return found


def _sharing(digit: int, bits: int, *, low: bool) -> bytes:
    """All digits whose lowest, or highest, bits are those of this one."""
    value = _DIGITS.index(digit)
    away = (1 << bits) - 1 if low else 63 ^ ((1 << (6 - bits)) - 1)
    return bytes([found for at, found in enumerate(_DIGITS) if (at ^ value) & away == 0])

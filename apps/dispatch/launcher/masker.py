"""Takes secrets out of a stream of output, wherever it is cut (spec/secrets-and-artifacts.md §5, lessons D16).

Every occurrence of every form is masked, overlapping ones as one place. Held back is only a tail that is the beginning
of some form; where the stream is cut changes nothing of what comes out.
"""

from __future__ import annotations

from bisect import bisect_left

from apps.artifacts.places import MARK
from apps.dispatch.launcher.anchors import ANCHOR, Finder, finder
from apps.dispatch.launcher.forms import SHORTEST, Form, forms, too_short

_FURTHER = 24

# What comes out: text; or a secret's number, with True where a new place begins, False where the last one hides it too.
Piece = memoryview | tuple[bool, int]
# A whole form in a buffer: its first byte, the byte behind it, its secret's number.
_Span = tuple[int, int, int]


class _Family:
    """Forms with the same anchor. Those of one key can be a hundred, and differ only further on."""

    __slots__ = ("_all", "_long", "_short")

    def __init__(self) -> None:
        self._all: list[Form] = []
        self._short: list[Form] = []
        self._long: dict[bytes, list[Form]] = {}

    def add(self, form: Form) -> None:
        self._all.append(form)
        if len(form.text) < _FURTHER:
            self._short.append(form)
        else:
            self._long.setdefault(form.text[:_FURTHER], []).append(form)

    def at(self, buffer: memoryview, first: int) -> list[Form]:
        """Those that may lie there."""
        if not self._long:
            return self._short
        beginning = bytes(buffer[first : first + _FURTHER])
        if len(beginning) < _FURTHER:
            return self._all
        found = self._long.get(beginning)
        return self._short + found if found else self._short


class Masker:
    """Masks one stream. Its pieces refer to the chunk they came from: they are used up before the next `feed`."""

    def __init__(self, secrets: tuple[tuple[str, str], ...], engine: str | None) -> None:
        """`secrets` are pairs of name and value; `engine` is where the engine lies (anchors.py)."""
        self.names = tuple(dict.fromkeys([name for name, _ in secrets]))
        self.refused = tuple(dict.fromkeys([name for name, value in secrets if value and too_short(value)]))
        every: list[Form] = []
        for name, value in secrets:
            if not too_short(value):
                every += forms(value, self.names.index(name))
        every.sort(key=lambda form: form.text)
        self._forms = every
        self._texts = [form.text for form in every]
        self._befores = frozenset(b"".join([form.before for form in every]))
        anchors: list[bytes] = []
        self._families: list[_Family] = []
        for form in every:
            if not anchors or form.text[:ANCHOR] != anchors[-1]:
                anchors.append(form.text[:ANCHOR])
                self._families.append(_Family())
            self._families[-1].add(form)
        self._find: Finder | None = finder(anchors, engine) if anchors else None
        self._begin()

    def _begin(self) -> None:
        self._held = b""
        self._covered = 0  # so many bytes at the beginning of what is held belong to the last place
        self._open: list[tuple[int, Form]] = []  # forms that what is held may become, and where they begin
        self._found: list[_Span] = []  # forms in what is held
        self._owners: set[int] = set()  # of the last place

    def whole(self, data: bytes) -> tuple[bytes, list[int]]:
        """Something beside the stream with its secrets taken out, and the numbers of those that were in it."""
        apart = object.__new__(Masker)
        vars(apart).update(vars(self))
        apart._begin()
        text, numbers = b"", {}
        for piece in [*apart.feed(memoryview(data)), *apart.flush()]:
            if isinstance(piece, memoryview):
                text += piece
                continue
            new, number = piece
            numbers[number] = True
            text += MARK if new else b""
        return text, list(numbers)

    def feed(self, chunk: memoryview) -> list[Piece]:
        """What may be let out now that this is known."""
        if self._find is None:
            return [chunk]
        known = len(self._held)
        buffer = memoryview(self._held + chunk) if known else chunk
        candidates = self._open
        self._open = []
        for at, form in candidates:
            self._judge(buffer, at, form)
        begin = max(0, known + 1 - ANCHOR)
        for number, first, end in self._find(buffer[begin:]):
            if begin + end <= known:
                continue  # short, and judged before
            for form in self._families[number].at(buffer, begin + first):
                self._judge(buffer, begin + first, form)
        hold = self._tail(buffer)
        pieces = self._cut(buffer, hold)
        self._held = bytes(buffer[hold:])
        return pieces

    def flush(self) -> list[Piece]:
        """The rest. Half of a form is masked like the whole: a script may be ended while it prints."""
        buffer = memoryview(self._held)
        size = len(buffer)
        for at, form in [*self._open, *self._beginnings(buffer)]:
            if 2 * (size - at) >= len(form.text) and size - at >= SHORTEST:
                self._found.append((_start(buffer, at, form), size, form.owner))
        self._open = []
        self._held = b""
        return self._cut(buffer, size)

    def _judge(self, buffer: memoryview, at: int, form: Form) -> None:
        """Notes a form whose anchor lies at `at`, where it is there as a whole or may become so."""
        end = at + len(form.text)
        if end > len(buffer) or (end == len(buffer) and form.after):
            if form.text.startswith(bytes(buffer[at:])):
                self._open.append((at, form))
        elif bytes(buffer[at:end]) == form.text:
            if form.after and buffer[end] in form.after:
                end += 1
            self._found.append((_start(buffer, at, form), end, form.owner))

    def _tail(self, buffer: memoryview) -> int:
        """Where the earliest beginning of a form that reaches to the end lies; the buffer's size where none does."""
        size = len(buffer)
        held = [_start(buffer, at, form) for at, form in [*self._open, *self._beginnings(buffer)]]
        if size and buffer[size - 1] in self._befores:
            held.append(size - 1)
        return min(held, default=size)

    def _beginnings(self, buffer: memoryview) -> list[tuple[int, Form]]:
        """Forms of which less than an anchor stands at the end, and where."""
        size = len(buffer)
        found = []
        for length in range(min(ANCHOR - 1, size), 0, -1):
            tail = bytes(buffer[size - length :])
            number = bisect_left(self._texts, tail)
            while number < len(self._texts) and self._texts[number].startswith(tail):
                if len(self._texts[number]) > length:
                    found.append((size - length, self._forms[number]))
                number += 1
        return found

    def _cut(self, buffer: memoryview, hold: int) -> list[Piece]:
        """Everything before `hold`, with places for the forms that begin there."""
        pieces: list[Piece] = []
        done = self._covered
        later = []
        for first, end, owner in sorted(self._found):
            if first >= hold:
                later.append((first - hold, end - hold, owner))
                continue
            new = first >= done
            if new:
                if first > done:
                    pieces.append(buffer[done:first])
                self._owners = set()
            if owner not in self._owners:
                self._owners.add(owner)
                pieces.append((new, owner))
            done = max(done, end)
        if hold > done:
            pieces.append(buffer[done:hold])
        self._found = later
        self._covered = max(0, done - hold)
        self._open = [(at - hold, form) for at, form in self._open]
        return pieces


def _start(buffer: memoryview, at: int, form: Form) -> int:
    """Where a form begins whose text lies at `at`: its first digit may be the secret's only in part."""
    return at - 1 if at and buffer[at - 1] in form.before else at

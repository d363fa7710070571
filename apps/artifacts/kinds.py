"""What a file that a script left is called in `Content-Type`: a short list of harmless types, the rest are bytes.

A type is told by the first bytes; the name only tells kinds of text apart. Nothing that a browser would carry out
(HTML, SVG, scripts) has a type of its own here. Standard library only.
"""

from __future__ import annotations

HEAD_BYTES = 4096
UNKNOWN = "application/octet-stream"
TEXT = "text/plain"

_MAGIC = (
    (b"\x89PNG\r\n\x1a\n", "image/png"),
    (b"\xff\xd8\xff", "image/jpeg"),
    (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"),
    (b"%PDF-", "application/pdf"),
    (b"PK\x03\x04", "application/zip"),
    (b"\x1f\x8b", "application/gzip"),
    (b"\x28\xb5\x2f\xfd", "application/zstd"),
    (b"SQLite format 3\0", "application/vnd.sqlite3"),
)
_TEXTS = {
    "csv": "text/csv",
    "tsv": "text/tab-separated-values",
    "md": "text/markdown",
    "json": "application/json",
    "ndjson": "application/x-ndjson",
    "jsonl": "application/x-ndjson",
    "yaml": "application/yaml",
    "yml": "application/yaml",
}


def content_type(name: str, head: bytes) -> str:
    """The type of a file of which `head` are the first bytes, at most 4,096."""
    for magic, known in _MAGIC:
        if head.startswith(magic):
            return known
    if head.startswith(b"RIFF") and head[8:12] == b"WEBP":
        return "image/webp"
    if not _is_text(head):
        return UNKNOWN
    return _TEXTS.get(name.rpartition(".")[2].lower(), TEXT)


def _is_text(head: bytes) -> bool:
    """Whether it is UTF-8 without NUL; a character may be cut at the end."""
    if b"\0" in head:
        return False
    try:
        head.decode()
    except UnicodeDecodeError as error:
        return error.reason == "unexpected end of data" and error.end == len(head) == HEAD_BYTES
    return True

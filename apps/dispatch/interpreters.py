"""Which programs run scripts of a language, in the order they are tried."""

from __future__ import annotations

import re
import shutil
import subprocess
from functools import lru_cache

Candidates = tuple[tuple[str, ...], ...]

INTERPRETERS: dict[str, Candidates] = {
    "python": (("python3",), ("python",)),
    "node": (("node",),),
    "typescript": (
        ("tsx",),
        ("bun", "run"),
        ("deno", "run", "--allow-all"),
        ("node", "--experimental-strip-types", "--no-warnings"),
    ),
    "shell": (("bash",), ("sh",)),
}
FILE_NAMES = {"python": "main.py", "node": "main.js", "typescript": "main.ts", "shell": "main.sh"}
_STRIPS_TYPES = (22, 6)
_VERSION_S = 5


def wanted(language: str, program: str) -> str:
    """A program as somebody has to install it: TypeScript needs a newer Node.js than JavaScript."""
    newest = language == "typescript" and program == "node"
    return "node >= " + ".".join(map(str, _STRIPS_TYPES)) if newest else program


def is_fixed(language: str) -> bool:
    """Whether what is tried does not depend on what is installed."""
    return language != "typescript"


def candidates(language: str, path: str) -> Candidates:
    """What to try on `path`. An old Node.js is left out of TypeScript's: its complaint would name no way out."""
    known = INTERPRETERS[language]
    if is_fixed(language):
        return known
    others = tuple(command for command in known if command[0] != "node")
    if any(shutil.which(command[0], path=path) for command in others):
        return known
    node = shutil.which("node", path=path)
    return known if node is not None and _version(node, path) >= _STRIPS_TYPES else others


def missing(language: str, path: str) -> list[str]:
    """What somebody may install so that scripts of the language run; empty where one of it is on `path`."""
    if any(shutil.which(command[0], path=path) for command in candidates(language, path)):
        return []
    return [wanted(language, command[0]) for command in INTERPRETERS[language]]


@lru_cache(maxsize=16)
def _version(program: str, path: str) -> tuple[int, ...]:
    try:
        answer = subprocess.run(  # noqa: S603  # found on the path that scripts get
            [program, "--version"],
            capture_output=True,
            text=True,
            timeout=_VERSION_S,
            check=False,
            env={"PATH": path},
        )
    except (OSError, subprocess.TimeoutExpired):
        return (0,)
    return tuple(int(number) for number in re.findall(r"\d+", answer.stdout)[:2])

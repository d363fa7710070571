"""The forms in which a secret can come to stand in output, and which values are too plain to be looked for.

Standard library only: the supervisor of a script looks for these forms, the panel warns of values it cannot mask.
"""

from __future__ import annotations

# Below this every second line of an ordinary log would be full of marks: `true`, `null`, a port, a year.
SHORTEST = 5
_PLAIN = frozenset({"false", "undefined", "default", "enabled", "disabled", "localhost"})


def too_short(value: str) -> bool:
    """Whether a secret's value cannot be masked: under 5 characters, one character repeated, or a word of every log.

    White space around it does not count. Such a value is given to the script all the same; its log says so.
    """
    bare = value.strip()
    return len(bare) < SHORTEST or len(set(bare)) == 1 or bare.lower() in _PLAIN

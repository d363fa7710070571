"""A stand-in for `dataclasses` inside the launcher: the real one loads half of Python's own compiler.

Everything the launcher holds is mapped again for every script, so a megabyte less is worth these lines. The
panel's side uses the real module; what both share keeps to `@dataclass(frozen=True, slots=True)`, `kw_only`
and `field(default=…, repr=…)`. Frozen is not enforced here, and repr shows no field.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

_MISSING = object()


class _Field:
    def __init__(self, default: object) -> None:
        self.default = default


def install() -> None:
    """Take the name `dataclasses`; before anything imports the real one."""
    module = ModuleType("dataclasses")
    module.dataclass = _dataclass  # type: ignore[attr-defined]
    module.field = _field  # type: ignore[attr-defined]
    sys.modules["dataclasses"] = module


def _field(*, default: object = _MISSING, repr: bool = True) -> _Field:
    return _Field(default)


def _dataclass(*, frozen: bool, slots: bool, kw_only: bool = False) -> Callable[[type], type]:
    return _with_slots


def _with_slots(plain: type) -> type:
    names = tuple(plain.__annotations__)
    members = {name: value for name, value in vars(plain).items() if name not in ("__dict__", "__weakref__")}
    defaults = {}
    for name in names:
        default = members.pop(name, _MISSING)
        if isinstance(default, _Field):
            default = default.default
        if default is not _MISSING:
            defaults[name] = default

    def values(self: object) -> tuple[object, ...]:
        return tuple([getattr(self, name) for name in names])

    def equal(self: object, other: object) -> bool:
        return type(self) is type(other) and values(self) == values(other)

    members.update(
        __slots__=names,
        __init__=_initialiser(names, defaults),
        __eq__=equal,
        __hash__=lambda self: hash(values(self)),
    )
    return type(plain.__name__, plain.__bases__, members)


def _initialiser(names: tuple[str, ...], defaults: dict[str, object]) -> Callable[..., None]:
    """Written out, as the real module does it: ten of these are made for each script."""
    heads = [f"{name}=defaults[{name!r}]" if name in defaults else name for name in names]
    # What comes after a default is given by name only.
    first = next((number for number, name in enumerate(names) if name in defaults), len(names))
    heads[first:first] = ["*"] if any(name not in defaults for name in names[first:]) else []
    lines = [f"self.{name} = {name}" for name in names]
    made: dict[str, Callable[..., None]] = {}
    exec(f"def initialise(self, {', '.join(heads)}): {'; '.join(lines)}", {"defaults": defaults}, made)  # noqa: S102
    return made["initialise"]

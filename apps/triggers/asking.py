"""What a trigger does for a task that needs an approval: it asks for one, as who it acts for (docs/approvals.md).

Approvals stand above triggers; whoever files registers here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

from apps.core.errors import Unavailable
from apps.triggers.models import Trigger


@dataclass(frozen=True)
class Firing:
    """One firing that may only ask: `request_id` is the same at every try, `input` what its run would be given."""

    request_id: str
    trigger_id: UUID
    project_id: str
    task_id: UUID
    acts_for: tuple[str, str]
    input: Mapping[str, Any] | None = field(default=None, repr=False)


Filer = Callable[[Firing], bool]
_filers: list[Filer] = []


def register(filer: Filer) -> None:
    """Who files requests: joins the caller's transaction, answers whether the request was there already, and raises
    a DomainError where none can be filed.
    """
    if filer not in _filers:
        _filers.append(filer)


def ask(firing: Firing) -> bool:
    """Files the request of a firing, or finds it (True); raises what the filer raises."""
    if not _filers:
        raise Unavailable
    return _filers[0](firing)


def of(trigger: Trigger, request_id: str, input: Mapping[str, Any] | None) -> Firing:
    """A firing of a trigger as it is now."""
    return Firing(
        request_id,
        trigger.pk,
        trigger.project_id,
        trigger.task_id,
        (trigger.author_type, trigger.author_id),
        input or None,
    )

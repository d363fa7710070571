"""What of an audit entry is hashed (workflows.md §9.4): everything but the scope and the row's own id."""

from __future__ import annotations

from typing import Any

from apps.audit.models import AuditEntry
from apps.core import clock


def document(entry: AuditEntry) -> dict[str, Any]:
    """The hashed document of an entry, without its previous hash; time as integer milliseconds."""
    actor = {"type": entry.actor_type, "id": entry.actor_id}
    if entry.on_behalf_of is not None:
        actor["on_behalf_of"] = entry.on_behalf_of
    return {
        "sequence": entry.sequence,
        "actor": actor,
        "origin": entry.origin,
        "action": entry.action,
        "subject_type": entry.subject_type,
        "subject_id": entry.subject_id,
        "metadata": entry.metadata,
        "occurred_at": clock.to_ms(entry.occurred_at),
    }

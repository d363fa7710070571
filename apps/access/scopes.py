"""What a credential may be used for, on top of what its subject may do (api.md, tokens)."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from datetime import datetime
from typing import Literal
from uuid import UUID

from django.utils.translation import gettext_lazy as _

from apps.core.errors import InvalidInput
from apps.projects import permissions

ALL = "*"
TOKEN_MANAGE = "token.manage"  # noqa: S105 - the name of a scope
INSTANCE_MANAGE = "instance.manage"
MAX_SCOPES = 64

# Scopes that are no project permission: making and revoking tokens, and what instance administrators do.
_OWN = frozenset({TOKEN_MANAGE, INSTANCE_MANAGE})
_NAMED_ONLY = frozenset({"policy.manage", "secret.manage", TOKEN_MANAGE})


@dataclass(frozen=True)
class Credential:
    """How a request was signed in. `scopes` None means all that the subject may; only sessions have that."""

    kind: Literal["session", "token"]
    scopes: frozenset[str] | None = None
    project_id: str | None = None
    token_id: UUID | None = None
    expires_at: datetime | None = None
    # Where it works from; empty = everywhere.
    addresses: tuple[str, ...] = ()

    def covers(self, scope: str) -> bool:
        """Whether the credential may be used for this permission; `*` leaves out what must be named."""
        if self.scopes is None or scope in self.scopes:
            return True
        return ALL in self.scopes and scope not in _NAMED_ONLY and not scope.startswith("approval.")


def check(scopes: Collection[str]) -> list[str]:
    """The scopes in order, without repetition; raises InvalidInput for none, too many and unknown ones."""
    if not 1 <= len(scopes) <= MAX_SCOPES:
        raise InvalidInput.field("scopes", _("From 1 to 64 scopes."))
    for scope in scopes:
        if scope != ALL and scope not in _OWN:
            try:
                permissions.find(scope)
            except InvalidInput as error:
                raise InvalidInput.field("scopes", _("Not a scope.")) from error
    return sorted(set(scopes))

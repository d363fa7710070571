"""Reading accounts and tokens."""

from __future__ import annotations

from apps.access.models import ApiToken, User
from apps.access.names import normal
from apps.core import ids, pages
from apps.identity.principals import PolicySubject


def find_account(username: str) -> User | None:
    """The account of this sign-in name, whatever its case."""
    name = normal(username)
    return User.objects.filter(username__iexact=name).first() if ids.is_text_id(name, 64) else None


def page_tokens(
    owner: PolicySubject, *, limit: int = pages.DEFAULT_LIMIT, cursor: str | None = None
) -> pages.Page[ApiToken]:
    """The tokens of one subject that were not revoked, newest first, each with its project."""
    rows = ApiToken.objects.filter(subject_id=owner.id, revoked_at=None).select_related("project")
    return pages.paginate(
        rows,
        [pages.moment("created_at", descending=True), pages.identifier(descending=True)],
        kind="tokens",
        scope={"subject": owner.id},
        limit=limit,
        cursor=cursor,
    )

"""Reading accounts and tokens."""

from __future__ import annotations

from apps.access.models import ApiToken, User
from apps.access.names import MAX_LENGTH, normal
from apps.core import ids, pages
from apps.identity.principals import PolicySubject


def find_account(username: str) -> User | None:
    """The account of this sign-in name, whatever its case."""
    if not ids.is_text_id(username, MAX_LENGTH) or not ids.is_text_id(name := normal(username), MAX_LENGTH):
        return None
    return User.objects.filter(username__iexact=name).first()


def page_tokens(
    owner: PolicySubject,
    *,
    project_id: str | None = None,
    limit: int = pages.DEFAULT_LIMIT,
    cursor: str | None = None,
) -> pages.Page[ApiToken]:
    """The tokens of one subject that were not revoked, newest first, each with its project.

    `project_id` limits them to those of one project.
    """
    rows = ApiToken.objects.filter(subject_id=owner.id, revoked_at=None).select_related("project")
    if project_id is not None:
        rows = rows.filter(project=project_id)
    return pages.paginate(
        rows,
        [pages.moment("created_at", descending=True), pages.identifier(descending=True)],
        kind="tokens",
        scope={"subject": owner.id, "project": project_id},
        limit=limit,
        cursor=cursor,
    )

"""Routes of sign-in: the caller, tokens, people, invitations and applications."""

from __future__ import annotations

from apps.access.api import applications, invitations, me, people, tokens

urlpatterns = [
    *me.urlpatterns,
    *tokens.urlpatterns,
    # Before the people: theirs take any id.
    *invitations.urlpatterns,
    *people.urlpatterns,
    *applications.urlpatterns,
]

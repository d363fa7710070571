"""Why a single sign-on did not work: a code for whoever tries, a reason for those who look after the panel.

The codes say nothing about what was wrong with a token, nor whether an identity is unknown or disabled; reasons are
for the log and the login doctor.
"""

from __future__ import annotations

import secrets

from django.utils.translation import gettext_lazy as _

from apps.core.errors import DomainError, Retry


class SingleSignOnFailed(DomainError):
    """Every refusal of this room. `reason` is lower_snake_case; `reference` ties a page to its line in the log."""

    code = "oidc_refused"
    status = 403
    message = _("The answer of the provider is not accepted.")

    def __init__(self, reason: str) -> None:
        self.reason = reason
        self.reference = secrets.token_hex(4)
        super().__init__()


class Cancelled(SingleSignOnFailed):
    """The provider sent the person back without a sign-in."""

    code = "oidc_cancelled"
    status = 400
    message = _("The provider did not complete the sign-in.")


class NotBegunHere(SingleSignOnFailed):
    """No such sign-in was begun in this browser, or it is over 10 minutes old, or was used before."""

    code = "oidc_state_unknown"
    status = 400
    message = _("This sign-in was not begun in this browser, took too long or is over already.")


class ProviderUnreachable(SingleSignOnFailed):
    """The provider does not answer, or not as a provider does."""

    code = "oidc_provider_unreachable"
    status = 503
    retry = Retry.RECOVERABLE
    message = _("The provider does not answer as it should.")


class ClocksDiffer(SingleSignOnFailed):
    """The signature is right and the times are not; `skew_ms` = the provider's clock minus ours."""

    code = "oidc_clocks_differ"
    message = _("The clocks of the provider and of this panel differ too much.")

    def __init__(self, reason: str, skew_ms: int) -> None:
        super().__init__(reason)
        self.skew_ms = skew_ms


class NoAccount(SingleSignOnFailed):
    """Unknown, revoked and disabled look alike."""

    code = "oidc_no_account"
    message = _("There is no account here for this identity, or it may not sign in.")


class NotRecent(SingleSignOnFailed):
    """A fresh sign-in was asked for, and the provider named an old one."""

    code = "oidc_not_recent"
    message = _("The provider did not ask for a new sign-in.")


class CannotLink(SingleSignOnFailed):
    """The identity belongs to another account, or the session that asked is over or no longer fresh."""

    code = "oidc_cannot_link"
    status = 409
    message = _("This identity cannot be added to your account.")


class NoProvider(SingleSignOnFailed):
    code = "oidc_provider_unknown"
    status = 404
    message = _("There is no such provider.")

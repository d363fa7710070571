"""What sign-in and tokens refuse."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from apps.core.errors import Conflict, DomainError, Forbidden, NotFound, Retry, Unauthenticated, Unavailable


class SignInRefused(Unauthenticated):
    """Never says whether the name, the password or the account was wrong."""

    code = "sign_in_refused"
    message = _("Name or password is wrong.")


class TooManyAttempts(DomainError):
    """Carries `retry_after` seconds."""

    code = "too_many_attempts"
    status = 429
    retry = Retry.RECOVERABLE
    message = _("Too many failed attempts; wait a little.")


class DoorBusy(TooManyAttempts):
    """So many passwords are being checked that this one was not looked at."""

    message = _("Many are signing in just now; try again in a moment.")


class UsernameTaken(Conflict):
    code = "username_taken"
    retry = Retry.NEVER
    message = _("This name is taken.")


class SessionNotFresh(Forbidden):
    code = "session_not_fresh"
    message = _("Sign in again to do this.")


class ScopeExceeded(Forbidden):
    code = "scope_exceeded"
    message = _("A token cannot make a token that may do more.")


class ScopeMissing(Forbidden):
    """The code of every refused permission; the sentence keeps an owner from looking at the role."""

    message = _("The scopes of this token do not allow this.")


class LengthRequired(DomainError):
    """A chunked body: Django would read it as empty, and an empty body may mean something else."""

    code = "length_required"
    status = 411
    message = _("Send the body with a Content-Length.")


class CsrfFailed(Forbidden):
    code = "csrf_failed"
    message = _("The CSRF token is missing or wrong.")


class LastMethod(Conflict):
    """Nobody is left without a way to sign in by a slip."""

    code = "last_sign_in_method"
    retry = Retry.NEVER
    message = _("This is the only way to sign in; add another one first.")


class BoundElsewhere(Conflict):
    """The external identity is another person's; it is never moved."""

    code = "authentication_bound_elsewhere"
    retry = Retry.NEVER
    message = _("This identity signs in somebody else.")


class FactorPresent(Conflict):
    code = "second_factor_present"
    retry = Retry.NEVER
    message = _("There is an app for codes already; remove it first.")


class PasskeyRefused(Unauthenticated):
    """Never says which part of the answer was wrong."""

    code = "passkey_refused"
    message = _("This passkey was not accepted.")


class LastAdministrator(Conflict):
    code = "last_administrator"
    retry = Retry.NEVER
    message = _("This is the only enabled instance administrator; name another one first.")


class NotYourself(Conflict):
    code = "not_yourself"
    retry = Retry.NEVER
    message = _("Somebody else must do this to you.")


class SessionListUnavailable(Unavailable):
    """The list of live sessions cannot be asked; no session is let in on a guess (§6.1)."""

    code = "session_list_unavailable"
    message = _("The list of sessions cannot be read just now.")


class InvitationRefused(DomainError):
    """What happens to somebody who opens a link; carries `reason` for the audit trail."""

    reason = ""


class InvitationInvalid(InvitationRefused, NotFound):
    """Unknown, used, expired and revoked links look alike."""

    code = "invitation_invalid"
    message = _("This link is not valid, or not any more.")


class InvitationUnbacked(InvitationRefused, Conflict):
    """Whoever made the link is disabled or could not give any more what it promises."""

    code = "invitation_not_backed"
    retry = Retry.NEVER
    message = _("Whoever made this link may not give any more what it promises.")

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__()


class InvitationArchived(InvitationRefused, Conflict):
    code = "invitation_project_archived"
    retry = Retry.NEVER
    message = _("The project of this link is archived; nobody can join it.")
    reason = "project_archived"


class InvitationNeedsProvider(InvitationRefused, Forbidden):
    """Under `OIDC_REQUIRED` nobody comes in by a password, and nobody gets the name of the emergency account."""

    code = "single_sign_on_required"
    message = _("People of this panel sign in through a provider.")
    reason = "password_not_allowed"


class InvitationForNewPeople(InvitationRefused, Conflict):
    """The identity has an account here: roles of people who are here are given to them, not to a link."""

    code = "invitation_for_new_people"
    retry = Retry.NEVER
    message = _("You have an account here already. Sign in, and ask for the role.")
    reason = "account_present"


class TooManyInvitations(TooManyAttempts):
    code = "too_many_invitations"
    message = _("You made 100 links within an hour; wait a little.")

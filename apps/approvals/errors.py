"""What approvals refuse (approvals.md §10). Messages are constant and say nothing of the action."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from apps.core.errors import Conflict, DomainError, Forbidden, InvalidInput, NotFound, Retry, Unavailable


class InvalidApprovalValue(InvalidInput):
    code = "invalid_approval_value"


class InvalidApprovedActionExecution(InvalidInput):
    code = "invalid_approved_action_execution"


class InvalidApprovedActionRecovery(InvalidInput):
    code = "invalid_approved_action_recovery"


class InvalidApprovedRunAction(InvalidInput):
    code = "invalid_approved_run_action"


class InvalidApprovedActionRecoveryAuthorization(InvalidInput):
    code = "invalid_approved_action_recovery_authorization"


class ApprovalRequestNotFound(NotFound):
    """For callers inside; the API answers as for every other address without anything behind it."""

    code = "approval_request_not_found"


class DispatchNotFound(NotFound):
    code = "approved_action_dispatch_not_found"


class RecoveryNotFound(NotFound):
    code = "approved_action_recovery_not_found"


class ApprovalPolicyDenied(Forbidden):
    code = "approval_policy_denied"


class HumanDecisionRequired(Forbidden):
    code = "approval_human_decision_required"
    message = _("Only a person decides about approvals.")


class SelfDecisionRejected(Forbidden):
    code = "approval_self_decision_rejected"
    message = _("Somebody else must decide what you asked for.")


class NotADecider(Forbidden):
    code = "approval_not_a_decider"
    message = _("The project lets fewer people decide than may by their role, and you are not among them.")


class AlreadyVoted(Conflict):
    code = "approval_already_voted"
    retry = Retry.NEVER
    message = _("You have said what you think of this already; others must decide too.")


class NotWithdrawable(Conflict):
    code = "approval_not_withdrawable"
    retry = Retry.NEVER
    message = _("A request of this kind cannot be taken back.")


class PolicyFenceConflict(Conflict):
    code = "approval_policy_fence_conflict"
    message = _("Rights or project have changed meanwhile; try again.")


class RequestVersionConflict(Conflict):
    code = "approval_request_version_conflict"
    message = _("The request has changed meanwhile; look at it again.")


class RequestStateConflict(Conflict):
    code = "approval_request_state_conflict"
    retry = Retry.NEVER
    message = _("The request is not in a state that allows this.")


class MutationConflict(Conflict):
    code = "approval_mutation_conflict"
    retry = Retry.NEVER
    message = _("This id was used for something else.")


class RequestExpired(Conflict):
    code = "approval_request_expired"
    retry = Retry.NEVER
    message = _("The request has expired; it must be asked for anew.")


class RequestVoid(Conflict):
    """`extra["reason"]` is the code of what has changed since it was filed (`standing`)."""

    code = "approval_request_void"
    retry = Retry.NEVER
    message = _("What was asked for is no longer what would happen; it must be asked for anew.")


class TooManyDecisions(DomainError):
    """Carries `retry_after` seconds."""

    code = "too_many_attempts"
    status = 429
    retry = Retry.RECOVERABLE
    message = _("Many decisions in a short time; wait a little.")


class TooManyOpen(DomainError):
    """Carries `retry_after` seconds."""

    code = "approval_requests_open"
    status = 429
    retry = Retry.RECOVERABLE
    message = _("Many of your requests wait already; let somebody decide first.")


class ApprovalUnavailable(Unavailable):
    """Storage that does not answer or breaks its own rules."""

    code = "approval_unavailable"
    message = _("Approvals cannot be decided just now.")


class DispatchFenceRejected(Conflict):
    code = "approved_action_dispatch_fence_rejected"


class DispatchStateConflict(Conflict):
    code = "approved_action_dispatch_state_conflict"
    retry = Retry.NEVER


class DispatchBindingConflict(Conflict):
    code = "approved_action_dispatch_binding_conflict"
    retry = Retry.NEVER


class DispatchRepositoryError(Unavailable):
    code = "approved_action_dispatch_repository_error"


class RecoveryFenceRejected(Conflict):
    code = "approved_action_recovery_fence_rejected"


class RecoveryBindingConflict(Conflict):
    code = "approved_action_recovery_binding_conflict"
    retry = Retry.NEVER


class RecoveryRepositoryError(Unavailable):
    code = "approved_action_recovery_repository_error"


class RecoveryHumanRequired(Forbidden):
    code = "approved_action_recovery_human_required"
    message = _("Only a person closes an action without evidence.")


class RecoveryStrongAuthenticationRequired(DomainError):
    code = "approved_action_recovery_strong_authentication_required"
    status = 401
    message = _("Sign in again with a second factor to do this.")


class RecoveryAuthorizationDenied(Forbidden):
    code = "approved_action_recovery_authorization_denied"


class RunActionBindingConflict(Conflict):
    code = "approved_run_action_binding_conflict"
    retry = Retry.NEVER


class RunActionRepositoryError(Unavailable):
    code = "approved_run_action_repository_error"

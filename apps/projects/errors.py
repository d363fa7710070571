"""What projects, roles and the owner bootstrap refuse (projects-and-identity.md §9)."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from apps.core.errors import Conflict, Forbidden, NotFound, Retry, Unavailable


class PolicyUnavailable(Unavailable):
    """Corrupt or unreachable policy data: neither allowed nor denied."""

    code = "project_policy_unavailable"
    message = _("Rights in this project cannot be decided just now.")


class PolicyFenceConflict(Conflict):
    """Rights or project changed between the decision and the write; deciding again may help."""

    code = "policy_fence_conflict"
    message = _("Rights or project have changed meanwhile; try again.")


class ApprovalRequired(Conflict):
    """The caller may only ask; carries `permission` and `action_type`, and `ask_at`, the address below the API's root
    that takes the same body, where the action can be asked for. Nothing has happened."""

    code = "approval_required"
    retry = Retry.NEVER
    message = _("This needs an approval first; nothing has happened.")


class NobodyCouldDecide(Conflict):
    """Carries `possible_deciders`, how many people could decide, and `quorum`, how many would have to agree."""

    code = "approval_policy_undecidable"
    retry = Retry.NEVER
    message = _("Fewer people could decide than must agree; nothing could be approved any more.")


class ProjectArchived(Forbidden):
    code = "project_archived"
    status = 409
    message = _("The project is archived; it can only be read.")


class ProjectNotFound(NotFound):
    code = "project_not_found"


class RoleVersionConflict(Conflict):
    code = "project_role_binding_version_conflict"
    message = _("The role has changed meanwhile.")


class RoleMutationConflict(Conflict):
    code = "project_role_binding_mutation_conflict"
    retry = Retry.NEVER
    message = _("This mutation id was used for another change.")


class LastOwner(Conflict):
    code = "last_owner"
    retry = Retry.NEVER
    message = _("The last owner of a project stays owner.")


class OwnerPresent(Conflict):
    code = "owner_present"
    retry = Retry.NEVER
    message = _("Somebody owns this project and can give the role; nothing is to be recovered.")


class OwnersOnly(Forbidden):
    message = _("Only an owner grants or revokes ownership.")


class SlugTaken(Conflict):
    code = "slug_taken"
    retry = Retry.NEVER
    message = _("Another project has this short name.")


class BootstrapUnauthorized(Forbidden):
    code = "project_owner_bootstrap_unauthorized"
    message = _("You may not do this.")


class BootstrapProjectNotFound(NotFound):
    code = "project_owner_bootstrap_project_not_found"


class BootstrapProjectInactive(Conflict):
    code = "project_owner_bootstrap_project_inactive"
    retry = Retry.NEVER
    message = _("The project is archived.")


class BootstrapNotPristine(Conflict):
    code = "project_owner_bootstrap_project_not_pristine"
    retry = Retry.NEVER
    message = _("The project has or had an owner; this way in is closed for good.")


class BootstrapChallengeActive(Conflict):
    code = "project_owner_bootstrap_challenge_active"
    message = _("A set-up token is still valid; use it or wait until it expires.")


class BootstrapClaimRejected(Forbidden):
    code = "project_owner_bootstrap_claim_rejected"
    message = _("The set-up token is not valid, or no longer.")


class BootstrapUnavailable(Unavailable):
    code = "project_owner_bootstrap_unavailable"
    message = _("Set-up cannot be decided just now.")

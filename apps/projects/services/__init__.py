"""Every write to projects, roles and owner challenges; one file per group of use cases."""

from __future__ import annotations

from apps.projects.services.approval_policies import change_approval_policy
from apps.projects.services.bootstrap import (
    Claim,
    Issued,
    claim_owner_bootstrap,
    console_issuer,
    issue_owner_bootstrap,
)
from apps.projects.services.derived import Followed, follow_roles
from apps.projects.services.lifecycle import create_project, set_project_status, update_project
from apps.projects.services.roles import (
    Appended,
    Binding,
    append_role_binding,
    change_role,
    recover_ownership,
    shut_out,
)

__all__ = [
    "Appended",
    "Binding",
    "Claim",
    "Followed",
    "Issued",
    "append_role_binding",
    "change_approval_policy",
    "change_role",
    "claim_owner_bootstrap",
    "console_issuer",
    "create_project",
    "follow_roles",
    "issue_owner_bootstrap",
    "recover_ownership",
    "set_project_status",
    "shut_out",
    "update_project",
]

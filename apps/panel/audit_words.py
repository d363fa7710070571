"""Acts of the audit trail in plain words; what has none is shown by its code."""

from __future__ import annotations

from django.utils.functional import Promise
from django.utils.translation import pgettext_lazy

ACTS: dict[str, Promise] = {
    "account.created": pgettext_lazy("audit", "made an account"),
    "administrator.granted": pgettext_lazy("audit", "made an instance administrator"),
    "administrator.revoked": pgettext_lazy("audit", "made no instance administrator any more"),
    "application.created": pgettext_lazy("audit", "made an application"),
    "application.updated": pgettext_lazy("audit", "changed an application"),
    "approval.requested": pgettext_lazy("audit", "asked for approval"),
    "approval.approved": pgettext_lazy("audit", "approved a request"),
    "approval.rejected": pgettext_lazy("audit", "rejected a request"),
    "approval.consumed": pgettext_lazy("audit", "handed an approved action over"),
    "approval.action_succeeded": pgettext_lazy("audit", "carried an approved action out"),
    "approval.action_failed": pgettext_lazy("audit", "found that an approved action did not happen"),
    "approval.action_blocked": pgettext_lazy("audit", "gave an approved action up"),
    "approval.closed_by_hand": pgettext_lazy("audit", "said what became of an approved action"),
    "approval.voided": pgettext_lazy("audit", "found a request void: what it was about has changed"),
    "approval.expired": pgettext_lazy("audit", "found a request expired"),
    "authentication.bound": pgettext_lazy("audit", "bound a way to sign in"),
    "authentication.revoked": pgettext_lazy("audit", "revoked a way to sign in"),
    "factor.added": pgettext_lazy("audit", "added a second factor"),
    "factor.removed": pgettext_lazy("audit", "removed a second factor"),
    "factor.recovery_code_used": pgettext_lazy("audit", "used a recovery code"),
    "factor.recovery_codes_renewed": pgettext_lazy("audit", "made new recovery codes"),
    "invitation.made": pgettext_lazy("audit", "made a link for somebody new"),
    "invitation.revoked": pgettext_lazy("audit", "revoked a link for somebody new"),
    "invitation.accepted": pgettext_lazy("audit", "came in by a link"),
    "invitation.refused": pgettext_lazy("audit", "refused somebody who came with a link"),
    "keyring.rotated": pgettext_lazy("audit", "made a new key the active one"),
    "keyring.key_retired": pgettext_lazy("audit", "retired a key"),
    "owner.recovered": pgettext_lazy("audit", "made somebody owner from the console"),
    "owner.shut_out": pgettext_lazy("audit", "disabled the only owner"),
    "owner-bootstrap.issued": pgettext_lazy("audit", "issued a set-up link"),
    "owner-bootstrap.claimed": pgettext_lazy("audit", "used the set-up link"),
    "password.changed": pgettext_lazy("audit", "changed the password"),
    "password.reset": pgettext_lazy("audit", "gave a new password from the console"),
    "project.created": pgettext_lazy("audit", "made the project"),
    "project.updated": pgettext_lazy("audit", "changed the project's settings"),
    "retention.changed": pgettext_lazy("audit", "changed what is kept"),
    "run.pinned": pgettext_lazy("audit", "kept a run"),
    "run.unpinned": pgettext_lazy("audit", "no longer kept a run"),
    "project.archived": pgettext_lazy("audit", "archived the project"),
    "project.restored": pgettext_lazy("audit", "restored the project"),
    "role.granted": pgettext_lazy("audit", "gave a role"),
    "role.revoked": pgettext_lazy("audit", "revoked a role"),
    "run.started": pgettext_lazy("audit", "started a run"),
    "run.retried": pgettext_lazy("audit", "retried a run"),
    "run.stop_requested": pgettext_lazy("audit", "asked a run to stop"),
    "run.stop_resolved": pgettext_lazy("audit", "decided about a stop that came to nothing"),
    "run.escaped_kill_requested": pgettext_lazy("audit", "had processes ended that outlived a stop"),
    "secret.created": pgettext_lazy("audit", "set a new secret"),
    "secret.replaced": pgettext_lazy("audit", "replaced the value of a secret"),
    "secret.disabled": pgettext_lazy("audit", "disabled a secret"),
    "secret.enabled": pgettext_lazy("audit", "enabled a secret"),
    "secret.resealed": pgettext_lazy("audit", "moved a secret to the active key"),
    "session.confirmed": pgettext_lazy("audit", "showed again who it is"),
    "session.revoked": pgettext_lazy("audit", "ended sessions"),
    "session.started": pgettext_lazy("audit", "signed in"),
    "session.ended": pgettext_lazy("audit", "signed out"),
    "sign_in.locked": pgettext_lazy("audit", "locked signing in after wrong passwords"),
    "subject.disabled": pgettext_lazy("audit", "disabled an identity"),
    "subject.enabled": pgettext_lazy("audit", "enabled an identity"),
    "subject.registered": pgettext_lazy("audit", "registered an identity"),
    "task.created": pgettext_lazy("audit", "made a task"),
    "task.updated": pgettext_lazy("audit", "changed a task"),
    "task.copied": pgettext_lazy("audit", "copied a task"),
    "task.enabled": pgettext_lazy("audit", "enabled a task"),
    "task.disabled": pgettext_lazy("audit", "disabled a task"),
    "task.archived": pgettext_lazy("audit", "archived a task"),
    "task.queue_emptied": pgettext_lazy("audit", "emptied a task's queue"),
    "task.batch_started": pgettext_lazy("audit", "began an action on all tasks that match"),
    "token.created": pgettext_lazy("audit", "made an API token"),
    "token.exchanged": pgettext_lazy("audit", "exchanged a client secret for a token"),
    "token.rotated": pgettext_lazy("audit", "gave a token a new secret"),
    "token.revoked": pgettext_lazy("audit", "revoked an API token"),
    "trigger.created": pgettext_lazy("audit", "made a trigger"),
    "trigger.changed": pgettext_lazy("audit", "changed a trigger"),
    "trigger.enabled": pgettext_lazy("audit", "enabled a trigger"),
    "trigger.disabled": pgettext_lazy("audit", "disabled a trigger"),
    "trigger.deleted": pgettext_lazy("audit", "deleted a trigger"),
    "trigger.secret_renewed": pgettext_lazy("audit", "renewed a webhook's secret"),
    "node.drained": pgettext_lazy("audit", "drained a node"),
    "node.resumed": pgettext_lazy("audit", "resumed a node"),
    "worker.drained": pgettext_lazy("audit", "drained a worker"),
    "worker.resumed": pgettext_lazy("audit", "resumed a worker"),
}
ORIGINS: dict[str, Promise] = {
    "panel": pgettext_lazy("audit origin", "panel"),
    "api": pgettext_lazy("audit origin", "API"),
    "command": pgettext_lazy("audit origin", "command line"),
    "invitation": pgettext_lazy("audit origin", "invitation"),
}


def act(code: str) -> str:
    """`started a run`."""
    return str(ACTS.get(code, code))


def origin(code: str) -> str:
    """Where an act came from."""
    return str(ORIGINS.get(code, code))

"""What can go wrong with keys, sealed values and recipes; messages tell nothing about them."""

from __future__ import annotations

from django.utils.translation import gettext_lazy as _

from apps.core.errors import Conflict, Corrupt, DomainError, Gone, InvalidInput, NotFound, Retry, Unavailable


class SecretUnavailable(Unavailable):
    """The keyring cannot be used, whatever the reason; the cause is never chained."""

    code = "local_secret_unavailable"
    message = _("Keys or secrets are not available.")


class SecretVersionConflict(Conflict):
    code = "local_secret_version_conflict"
    message = _("The secret has changed meanwhile.")


class SecretMutationConflict(Conflict):
    code = "local_secret_mutation_conflict"
    retry = Retry.NEVER
    message = _("This mutation id was used for another change.")


class SecretDisabled(Conflict):
    """A secret that is needed must not be used for now."""

    code = "secret_disabled"
    retry = Retry.NEVER
    message = _("A secret that this task needs is disabled.")


class ProviderFixed(Conflict):
    code = "secret_provider_fixed"
    retry = Retry.NEVER
    message = _("Where the values of a secret lie cannot be changed; make another secret.")


class ProviderOff(Conflict):
    code = "secret_provider_off"
    retry = Retry.NEVER
    message = _("This installation does not use that provider.")


class KeyringExists(Conflict):
    code = "keyring_exists"
    message = _("A keyring is there already; it is never overwritten.")


class KeyringFull(Conflict):
    code = "keyring_full"
    message = _("The keyring holds 16 keys; retire one first.")


class KeyUnknown(NotFound):
    code = "key_unknown"
    message = _("The keyring has no such key.")


class KeyActive(Conflict):
    code = "key_active"
    message = _("New values are sealed with this key; rotate first.")


class KeyInUse(Conflict):
    code = "key_in_use"
    message = _("Stored values still need this key; re-seal them first.")


class PayloadTooLarge(InvalidInput):
    code = "sealed_payload_too_large"
    message = _("The value is larger than 65,536 bytes.")


class PayloadUnreadable(DomainError):
    """Missing, moved to another row, holder or project, altered, or sealed with a key that is gone."""

    code = "sealed_payload_unreadable"
    status = 500
    message = _("A stored value cannot be opened.")


class PayloadExpired(Gone):
    code = "sealed_payload_expired"


class RecipeConflict(Conflict):
    """A recipe is immutable; `context_ref` names the one that would have changed."""

    code = "recipe_immutable_conflict"


class RecipeCorrupt(Corrupt):
    code = "recipe_corrupt"
    message = _("A stored environment is damaged.")


class SecretsNotAvailable(Unavailable):
    """The environment names a secret and there is nobody who could resolve it."""

    code = "plan_unavailable"
    message = _("The environment of this task cannot be built.")

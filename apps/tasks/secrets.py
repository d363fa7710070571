"""The secrets a task names: what of the environment is looked up when an attempt starts (api.md, "Task").

`{"PGPASSWORD": "pg-password"}` gives the value by the variable. `{"CERT": {"secret": "tls", "as": "file"}}` leaves it
in a file of the attempt's own and gives its path by CERT_FILE; so it is done with any value beyond 32,768 bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.core import ids
from apps.vault import recipes
from apps.vault.recipes import Binding, Public, Secret
from apps.vault.references import NAME, Reference

FILE = "_FILE"
MAX_VARIABLE = recipes.MAX_NAME - len(FILE)
Way = Literal["env", "file"]


class SecretsRefused(Exception):
    """The secrets of a task break a rule; carries the sentence."""

    def __init__(self, sentence: str | Promise) -> None:
        self.sentence = sentence
        super().__init__()


@dataclass(frozen=True, order=True)
class SecretUse:
    """One variable, the secret behind it and how the script gets the value."""

    variable: str
    secret: str = field(repr=False)
    way: Way = "env"

    def document(self) -> Any:
        """The API's form."""
        return self.secret if self.way == "env" else {"secret": self.secret, "as": self.way}


SecretUses = tuple[SecretUse, ...]


def read(value: Any) -> SecretUses:
    """The uses of an API document, by variable; raises SecretsRefused."""
    if not isinstance(value, Mapping) or len(value) > recipes.MAX_BINDINGS:
        raise SecretsRefused(_("An object of at most 256 names and secrets is expected."))
    uses = tuple(sorted(_use(variable, wanted) for variable, wanted in value.items()))
    if len(names(uses)) > recipes.MAX_SECRETS:
        raise SecretsRefused(_("At most 64 different secrets."))
    return uses


def document(uses: SecretUses) -> dict[str, Any]:
    """What `read` reads as these uses."""
    return {use.variable: use.document() for use in uses}


def names(uses: Iterable[SecretUse]) -> set[str]:
    """The secrets themselves."""
    return {use.secret for use in uses}


def clash(env: Mapping[str, str], uses: SecretUses) -> Promise | None:
    """What is wrong with values and secrets together: a variable must have one meaning, that of a path too."""
    variables = {use.variable for use in uses}
    taken = variables & env.keys() or {use.variable + FILE for use in uses} & (env.keys() | variables)
    return (
        _("A name is there twice, among the values and the secrets; a secret also takes its name with _FILE.")
        if taken
        else None
    )


def bindings(project_id: str, env: Mapping[str, str], uses: SecretUses) -> list[Binding]:
    """What the recipe of an environment holds: values, and references of the project's own secrets."""
    public: list[Binding] = [Public(name, value) for name, value in env.items()]
    return public + [Secret(use.variable, Reference(project_id, use.secret).text) for use in uses]


def _use(variable: Any, wanted: Any) -> SecretUse:
    if (
        not isinstance(variable, str)
        or not 1 <= len(variable) <= MAX_VARIABLE
        or "=" in variable
        or "\0" in variable
        or not ids.is_utf8(variable)
    ):
        raise SecretsRefused(_("A name is 1 to 250 characters without = in it."))
    way: Any = "env"
    if isinstance(wanted, Mapping):
        if set(wanted) != {"secret", "as"}:
            raise SecretsRefused(_("A secret is its name, or an object with secret and as."))
        wanted, way = wanted["secret"], wanted["as"]
    if way not in ("env", "file"):
        raise SecretsRefused(_("as is env or file."))
    if not isinstance(wanted, str) or NAME.fullmatch(wanted) is None:
        raise SecretsRefused(
            _("A secret's name is 1 to 128 letters, digits, . _ and -, the first one a letter or digit.")
        )
    return SecretUse(variable, wanted, way)

"""Recipes of environments: content-addressed, immutable, no secret values (secrets-and-artifacts.md §4)."""

from __future__ import annotations

import hmac
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any, Literal

from django.db import IntegrityError

from apps.core import canonical, clock, db, ids
from apps.core.errors import InvalidInput
from apps.vault.errors import RecipeConflict, RecipeCorrupt
from apps.vault.models import ExecutionContextRecipe

MAX_BINDINGS = 256
MAX_NAME = 255
MAX_VALUE_BYTES = 65_536
MAX_TOTAL_BYTES = 262_144
MAX_SECRETS = 64
MAX_REFERENCE = 512
_CONTEXT_REF = re.compile(r"localctx:sha256:[0-9a-f]{64}")
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True)
class Public:
    """A value that stands in the recipe, byte for byte."""

    name: str
    value: str

    def document(self) -> dict[str, str]:
        return {"name": self.name, "kind": "public", "value": self.value}


@dataclass(frozen=True)
class Secret:
    """The reference of a secret; the value is looked up when an attempt starts."""

    name: str
    secret_ref: str = field(repr=False)

    def document(self) -> dict[str, str]:
        return {"name": self.name, "kind": "secret", "secret_ref": self.secret_ref}


Binding = Public | Secret


@dataclass(frozen=True)
class Recipe:
    """Bindings in order of their names, and the address that their content gives."""

    context_ref: str
    bindings: tuple[Binding, ...] = field(repr=False)

    @property
    def text(self) -> str:
        """The canonical JSON array."""
        return canonical.ordered([binding.document() for binding in self.bindings])

    @property
    def digest(self) -> str:
        environment = [binding.document() for binding in self.bindings]
        return canonical.sha256(
            canonical.ordered({"context_ref": self.context_ref, "environment": environment})
        )


def build(bindings: Iterable[Binding]) -> Recipe:
    """A checked recipe; the order of the input does not matter.

    Raises InvalidInput for a name that is empty, longer than 255, twice there or with `=` or NUL, a value
    with NUL or beyond 65,536 bytes, more than 256 bindings, 64 distinct secrets or 262,144 bytes in all.
    """
    ordered = tuple(sorted(bindings, key=lambda binding: binding.name))
    if len(ordered) > MAX_BINDINGS:
        raise InvalidInput("too many bindings")
    if len({binding.name for binding in ordered}) != len(ordered):
        raise InvalidInput("a name is there twice")
    total = sum(_size(binding) for binding in ordered)
    if total > MAX_TOTAL_BYTES:
        raise InvalidInput("the environment is too large")
    if len({binding.secret_ref for binding in ordered if isinstance(binding, Secret)}) > MAX_SECRETS:
        raise InvalidInput("too many secrets")
    text = canonical.ordered([binding.document() for binding in ordered])
    return Recipe(f"localctx:sha256:{canonical.sha256(text)}", ordered)


def publish(bindings: Iterable[Binding]) -> str:
    """Stores the recipe of these bindings, if it is new, and returns its `context_ref`."""
    recipe = build(bindings)
    insert(recipe)
    return recipe.context_ref


@db.write_transaction
def insert(recipe: Recipe) -> Literal["inserted", "idempotent"]:
    """Stores a recipe once; the first time of creation stays.

    Raises RecipeCorrupt where the stored twin is damaged, RecipeConflict where it differs.
    """
    if build(recipe.bindings) != recipe:
        raise InvalidInput("the reference is not the address of the content")
    if _same(recipe):
        return "idempotent"
    try:
        with db.savepoint():
            ExecutionContextRecipe.objects.create(
                context_ref=recipe.context_ref,
                environment_recipe=recipe.text,
                content_digest=recipe.digest,
                created_at=clock.now(),
            )
    except IntegrityError as error:
        if not db.is_unique_violation(error):
            raise
        if not _same(recipe):
            raise RecipeConflict(context_ref=recipe.context_ref) from None
        return "idempotent"
    return "inserted"


def resolve(context_ref: str) -> Recipe | None:
    """The recipe at that address or None; raises RecipeCorrupt and, for what is no address, InvalidInput."""
    return resolve_many([context_ref]).get(context_ref)


def resolve_many(context_refs: Collection[str]) -> dict[str, Recipe]:
    """All recipes of these addresses, checked, in one query; absent ones are left out."""
    if not all(ids.is_text_id(reference, MAX_REFERENCE) for reference in context_refs):
        raise InvalidInput
    rows = ExecutionContextRecipe.objects.filter(context_ref__in=set(context_refs)) if context_refs else []
    return {row.context_ref: _read(row) for row in rows}


def checked(recipe: Recipe) -> tuple[Binding, ...]:
    """The bindings of a recipe whose rules all hold; raises InvalidInput."""
    return build(recipe.bindings).bindings


def _same(recipe: Recipe) -> bool:
    stored = resolve(recipe.context_ref)
    return stored is not None and hmac.compare_digest(stored.digest, recipe.digest)


def _size(binding: Binding) -> int:
    name = binding.name
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or "=" in name or "\0" in name:
        raise InvalidInput("a name is not possible")
    if isinstance(binding, Secret):
        if not ids.is_text_id(binding.secret_ref, MAX_REFERENCE) or not ids.is_utf8(name):
            raise InvalidInput("a secret reference is not possible")
        return len(name.encode())
    if not isinstance(binding.value, str) or "\0" in binding.value:
        raise InvalidInput("a value holds NUL")
    if not ids.is_utf8(name) or not ids.is_utf8(binding.value):
        raise InvalidInput("text is not valid Unicode")
    size = len(binding.value.encode())
    if size > MAX_VALUE_BYTES:
        raise InvalidInput("a value is too large")
    return len(name.encode()) + size


def _read(row: ExecutionContextRecipe) -> Recipe:
    try:
        recipe = build(_binding(item) for item in _array(canonical.loads(row.environment_recipe)))
    except (InvalidInput, canonical.NotCanonical) as error:
        raise RecipeCorrupt from error
    right = (
        recipe.text == row.environment_recipe
        and recipe.context_ref == row.context_ref
        and _DIGEST.fullmatch(row.content_digest) is not None
        and hmac.compare_digest(recipe.digest, row.content_digest)
    )
    if not right:
        raise RecipeCorrupt
    return recipe


def _array(value: Any) -> list[Any]:
    if not isinstance(value, list):
        raise InvalidInput("not a list")
    return value


def _binding(value: Any) -> Binding:
    match value:
        case {"name": name, "kind": "public", "value": text} if len(value) == 3:
            return Public(name, text)
        case {"name": name, "kind": "secret", "secret_ref": reference} if len(value) == 3:
            return Secret(name, reference)
    raise InvalidInput("not a binding")

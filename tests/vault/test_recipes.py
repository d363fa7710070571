from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from apps.core import canonical
from apps.core.errors import InvalidInput
from apps.vault import recipes
from apps.vault.models import ExecutionContextRecipe
from apps.vault.recipes import Public, Secret

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), max_size=30)
NAME = st.text(st.characters(exclude_characters="\0=", exclude_categories=["Cs"]), min_size=1, max_size=20)
BINDINGS = st.dictionaries(NAME, TEXT, max_size=12)


def _values(recipe: recipes.Recipe) -> dict[str, str]:
    return {binding.name: binding.value for binding in recipes.checked(recipe) if isinstance(binding, Public)}


@given(BINDINGS, st.randoms(use_true_random=False))
def test_canonical_text_round_trips(values: dict[str, str], random: Any) -> None:
    shuffled = list(values.items())
    random.shuffle(shuffled)
    recipe = recipes.build(Public(*pair) for pair in values.items())
    assert recipes.build(Public(*pair) for pair in shuffled) == recipe
    row = ExecutionContextRecipe(
        context_ref=recipe.context_ref, environment_recipe=recipe.text, content_digest=recipe.digest
    )
    assert recipes._read(row) == recipe
    assert _values(recipe) == values
    assert [binding.name for binding in recipe.bindings] == sorted(values)


@pytest.mark.parametrize(
    "value", ["a\nb", 'say "hi"', "it's", "$HOME `id`", "trailing  ", "\tтекст 中文 🌿", "", "a\\n\\"]
)
@pytest.mark.django_db
def test_d15_values_are_kept_byte_for_byte(value: str) -> None:
    reference = recipes.publish([Public("X", value)])
    recipe = recipes.resolve(reference)
    assert recipe is not None
    assert _values(recipe) == {"X": value}


@pytest.mark.parametrize(
    "bindings",
    [
        [Public("", "x")],
        [Public("x" * 256, "x")],
        [Public("a=b", "x")],
        [Public("a\0", "x")],
        [Public("a", "x\0")],
        [Public("a", "\ud800")],
        [Public("\ud800", "a")],
        [Public("a", "x" * 65_537)],
        [Public("a", "x"), Public("a", "y")],
        [Public(f"n{index}", "") for index in range(257)],
        [Public(f"n{index}", "x" * 65_536) for index in range(4)],
        [Secret("a", "")],
        [Secret("a", "x" * 513)],
        [Secret("a", "x\n")],
        [Secret(f"n{index}", f"r{index}") for index in range(65)],
    ],
)
def test_limits_hold_at_publish(bindings: list[Any]) -> None:
    with pytest.raises(InvalidInput):
        recipes.build(bindings)


def test_largest_that_is_allowed() -> None:
    size = (262_144 - 8) // 4
    recipe = recipes.build([Public(f"n{index}", "x" * size) for index in range(4)])
    assert sum(len(value) for value in _values(recipe).values()) == size * 4
    assert len(recipes.build([Public(f"n{index}", "") for index in range(256)]).bindings) == 256


def test_references_of_secrets_stay_out_of_repr() -> None:
    recipe = recipes.build([Secret("TOKEN", "qlsecret:v1:abc")])
    assert "qlsecret" not in repr(recipe)


@pytest.mark.django_db
def test_resolve_refuses_what_is_no_reference() -> None:
    for reference in ("", "x" * 513, "a\n"):
        with pytest.raises(InvalidInput):
            recipes.resolve(reference)
    assert recipes.resolve("localctx:sha256:" + "0" * 64) is None


@pytest.mark.django_db
def test_insert_refuses_a_false_address() -> None:
    recipe = recipes.build([])
    with pytest.raises(InvalidInput):
        recipes.insert(recipes.Recipe("localctx:sha256:" + "0" * 64, recipe.bindings))
    assert canonical.sha256("[]") in recipe.context_ref

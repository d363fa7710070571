"""secrets-and-artifacts.md §14, scenarios 13 to 17."""

from __future__ import annotations

import itertools
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
from django.db import connection

from apps.core import clock
from apps.projects.policy import Grant
from apps.tasks import services
from apps.tasks.models import Task, TaskExecutionRevision
from apps.vault import recipes
from apps.vault.errors import RecipeCorrupt
from apps.vault.models import ExecutionContextRecipe
from apps.vault.recipes import Public, Secret
from tests.dispatch.conftest import home
from tests.dispatch.sessions import Home
from tests.runs import kit

__all__ = ["home"]

TOKEN = "qlsecret:v1:eyJwcm9qZWN0X2lkIjoiZGVmYXVsdCIsIm5hbWUiOiJBUElfVE9LRU4iLCJ2ZXJzaW9uIjozfQ"


def test_secrets_13_vectors_and_order() -> None:
    bindings = [Public("LANG", "C.UTF-8"), Secret("TOKEN", TOKEN)]
    for order in itertools.permutations(bindings):
        recipe = recipes.build(order)
        assert recipe.context_ref == (
            "localctx:sha256:f685cd4281a6fad2efac74fc13d076aa062a32d0d861644bc49647a7170fd2ee"
        )
        assert recipe.digest == "68c26fca66c7fbb99780682f1e3d5e66528bc4891a0ca9e1f2c5cf4c4fce43e4"
    assert recipes.build([]).context_ref == (
        "localctx:sha256:4f53cda18c2baa0c0354bb5f9a3ecbe5ed12ab4d8e11ba873c2f11161202b945"
    )


@pytest.mark.django_db
def test_secrets_14_the_second_insert_changes_nothing(time: Any) -> None:
    recipe = recipes.build([Public("A", "1")])
    assert recipes.insert(recipe) == "inserted"
    first = clock.now()
    time.advance(5_000)
    assert recipes.insert(recipe) == "idempotent"
    assert ExecutionContextRecipe.objects.get().created_at == first == clock.now() - timedelta(seconds=5)


def test_secrets_14_two_connections_insert_once(seeded: None) -> None:
    recipe = recipes.build([Public("A", "1")])
    barrier = Barrier(4)

    def insert(_index: int) -> str:
        try:
            barrier.wait(10)
            return recipes.insert(recipe)
        finally:
            connection.close()

    with ThreadPoolExecutor(4) as pool:
        results = sorted(pool.map(insert, range(4)))
    assert results == ["idempotent"] * 3 + ["inserted"]
    assert ExecutionContextRecipe.objects.count() == 1


@pytest.mark.parametrize(
    ("column", "value"),
    [
        ("environment_recipe", '[{"name":"A","kind":"public","value": "1"}]'),
        ("environment_recipe", '[{"kind":"public","name":"A","value":"1"}]'),
        ("environment_recipe", '[{"name":"A","kind":"public","value":"2"}]'),
        ("environment_recipe", '[{"name":"A","kind":"public","value":"1","more":1}]'),
        ("environment_recipe", '[{"name":1,"kind":"public","value":"1"}]'),
        ("environment_recipe", '{"name":"A","kind":"public","value":"1"}'),
        ("environment_recipe", "not json"),
        ("content_digest", "0" * 64),
        ("content_digest", "short"),
    ],
)
@pytest.mark.django_db
def test_secrets_15_a_changed_row_is_corrupt(column: str, value: str) -> None:
    recipe = recipes.build([Public("A", "1")])
    row = {
        "context_ref": recipe.context_ref,
        "environment_recipe": recipe.text,
        "content_digest": recipe.digest,
        column: value,
    }
    ExecutionContextRecipe.objects.create(**row)
    with pytest.raises(RecipeCorrupt):
        recipes.resolve(recipe.context_ref)
    with pytest.raises(RecipeCorrupt):
        recipes.insert(recipe)


@pytest.mark.django_db
def test_secrets_16_no_recipe_no_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_bindings: Any) -> str:
        raise RecipeCorrupt

    monkeypatch.setattr(recipes, "publish", fail)
    with pytest.raises(RecipeCorrupt):
        services.create_task(
            Grant.system("default", "task.create", "spec"), services.TaskDraft(name="a", shell="true")
        )
    assert not TaskExecutionRevision.objects.exists()
    assert not Task.objects.exists()


def _files(folder: Path) -> list[str]:
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if "locks" not in path.parts)


def test_secrets_17_a_missing_secret_leaves_no_log_and_no_folder(home: Home) -> None:
    task = kit.task(shell=f"touch {home.path}/ran", secrets={"TOKEN": "missing"})
    run = kit.run_of(task)
    home.session()
    ended = kit.fresh(run)
    assert (ended.status, ended.error_code, ended.error_summary) == (
        "failed", "EXECUTOR_START_FAILED", "plan_unavailable",
    )  # fmt: skip
    assert not (home.path / "ran").exists()
    assert not [name for name in _files(home.path) if name.startswith(("logs/", "homes/", "node/attempts/"))]
    assert not list((home.path / "logs").glob("*"))
    kit.check_history(run)

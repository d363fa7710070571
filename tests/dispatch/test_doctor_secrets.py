"""What `doctor` says of providers and of sealed values whose key is gone."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from apps.dispatch import doctor
from apps.dispatch.doctor import Level
from apps.projects.policy import Grant
from apps.vault import keyring, rekeying, sealing, services


def of(findings: Any) -> dict[str, Level]:
    return {finding.code: finding.level for finding in findings}


def test_providers(settings: Any, tmp_path: Path) -> None:
    assert of(doctor._providers()) == {}
    settings.SECRET_VARIABLES = "PANEL_SECRET_"
    settings.SECRET_FILES = tmp_path / "files"
    assert of(doctor._providers()) == {
        "secret_file_unusable": Level.FAILURE,
        "secret_environment": Level.GOOD,
    }
    settings.SECRET_FILES.mkdir(mode=0o700)
    assert of(doctor._providers())["secret_file"] == Level.GOOD
    settings.SECRET_FILES.chmod(0o750)
    assert of(doctor._providers())["secret_file_unusable"] == Level.FAILURE


@pytest.mark.django_db
def test_values_whose_key_is_gone(settings: Any, tmp_path: Path) -> None:
    settings.KEYRING_PATH = tmp_path / "keyring.json"
    old = keyring.create()
    manage = Grant.system("default", "secret.manage", "tests")
    for name in ("one", "two"):
        services.put(manage, name, "v1", mutation_id="m", expected_version=0)
    sealing.seal("run.input", project_id="default", holder=("run", "1"), value=1, schema_id="s")
    keyring.rotate()
    services.put(manage, "two", "v2", mutation_id="n", expected_version=1)
    assert of(doctor._keys_missing()) == {}
    document = json.loads(settings.KEYRING_PATH.read_text())
    del document["keys"][old]
    settings.KEYRING_PATH.write_text(json.dumps(document))
    assert rekeying.without_key() == 2
    (finding,) = doctor._keys_missing()
    assert (finding.code, finding.level) == ("keys_missing", Level.WARNING)
    assert str(finding.sentence).startswith("2 ")
    settings.KEYRING_PATH.unlink()
    assert of(doctor._keys_missing()) == {}

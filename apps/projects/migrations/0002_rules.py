from datetime import UTC, datetime

from django.db import migrations

from apps.core.immutable import Freeze

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def seed(apps, schema_editor):
    """The baseline project; its first owner comes in by a one-time challenge, never here."""
    apps.get_model("projects", "Project").objects.get_or_create(
        id="default",
        defaults={
            "name": "Default",
            "slug": "default",
            "status": "active",
            "version": 1,
            "created_at": EPOCH,
            "updated_at": EPOCH,
        },
    )


class Migration(migrations.Migration):
    dependencies = [("projects", "0001_initial")]

    operations = [
        migrations.RunPython(seed, migrations.RunPython.noop),
        Freeze("project_role_bindings", keep=True),
        Freeze(
            "project_owner_bootstrap_challenges",
            only=["project_id", "version", "challenge_id", "token_digest", "issued_at", "expires_at"],
            once=["consumed_at", "claimed_subject_type", "claimed_subject_id"],
        ),
    ]

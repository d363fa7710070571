from datetime import UTC, datetime

from django.db import migrations

from apps.core.immutable import Freeze

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def seed(apps, schema_editor):
    """The subject that a moved-in 2.x panel signs in as; it has no account and no role."""
    subject, _ = apps.get_model("identity", "IdentitySubject").objects.get_or_create(
        id="usr_legacy_primary",
        defaults={"type": "user", "status": "active", "version": 1, "created_at": EPOCH, "updated_at": EPOCH},
    )
    apps.get_model("identity", "IdentityAuthenticationBinding").objects.get_or_create(
        provider="legacy_panel",
        provider_subject="singleton",
        version=1,
        defaults={"state": "active", "subject": subject, "created_at": EPOCH},
    )


class Migration(migrations.Migration):
    dependencies = [("identity", "0001_initial")]

    operations = [
        migrations.RunPython(seed, migrations.RunPython.noop),
        Freeze("identity_authentication_bindings", keep=True),
    ]

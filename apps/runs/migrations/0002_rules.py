from django.db import migrations

from apps.core.immutable import Freeze


def leave_room(apps, schema_editor):
    """PostgreSQL rewrites a row in place only where its page has room; an attempt is written four times."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("ALTER TABLE run_attempts SET (fillfactor = 60)")
        schema_editor.execute("ALTER TABLE runs SET (fillfactor = 60)")


class Migration(migrations.Migration):
    dependencies = [("runs", "0001_initial")]

    operations = [
        Freeze("run_events"),
        migrations.RunPython(leave_room, migrations.RunPython.noop),
    ]

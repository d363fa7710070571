from django.db import migrations

from apps.core.immutable import Freeze, Guard


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0001_initial")]

    operations = [
        Freeze("run_artifacts"),
        Freeze("artifact_retentions"),
        # A tombstone goes with the attempt only, and that only into a summary.
        Guard(
            "artifact_retentions",
            "delete",
            "EXISTS (SELECT 1 FROM run_attempts a JOIN run_summaries s ON s.run_id = a.run_id WHERE a.id = OLD.attempt_id)",
        ),
    ]

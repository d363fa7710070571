from django.db import migrations

from apps.core.immutable import Freeze, Guard


def leave_room(apps, schema_editor):
    """PostgreSQL rewrites a row in place only where its page has room; an attempt is written four times."""
    if schema_editor.connection.vendor == "postgresql":
        schema_editor.execute("ALTER TABLE run_attempts SET (fillfactor = 60)")
        schema_editor.execute("ALTER TABLE runs SET (fillfactor = 60)")


FOLDED = "EXISTS (SELECT 1 FROM run_summaries s WHERE s.run_id = OLD.run_id)"
FOLDABLE = (
    "EXISTS (SELECT 1 FROM runs r WHERE r.id = NEW.run_id AND r.finished_at IS NOT NULL "
    "AND r.status IN ('succeeded', 'failed', 'cancelled', 'timed_out')) "
    "AND NOT EXISTS (SELECT 1 FROM run_holds h WHERE h.run_id = NEW.run_id)"
)
# The one door, whoever writes: a task that needs an approval runs by one, or by what its project lets a person do alone.
ADMITTED = (
    "NOT EXISTS (SELECT 1 FROM tasks t WHERE t.id = NEW.task_id AND t.requires_approval) "
    "OR (NEW.trigger_type = 'approved_action' AND NEW.request_id IS NOT NULL) "
    "OR EXISTS (SELECT 1 FROM run_alone_starts a WHERE a.run_id = NEW.id)"
)


class Migration(migrations.Migration):
    dependencies = [("runs", "0001_initial")]

    operations = [
        Freeze("run_events"),
        # A history goes into a summary or not at all (apps.runs.services.folding).
        Freeze("run_summaries", keep=True),
        Guard("run_summaries", "insert", FOLDABLE),
        Guard("run_events", "delete", FOLDED),
        Guard("run_attempts", "delete", FOLDED),
        Freeze("run_alone_starts", keep=True),
        Guard("runs", "insert", ADMITTED),
        migrations.RunPython(leave_room, migrations.RunPython.noop),
    ]

from django.db import migrations

from apps.core.immutable import Freeze


class Migration(migrations.Migration):
    dependencies = [("tasks", "0001_initial")]

    operations = [
        Freeze("task_execution_revisions"),
    ]

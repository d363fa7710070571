from django.db import migrations

from apps.core.immutable import Freeze


class Migration(migrations.Migration):
    dependencies = [("triggers", "0001_initial")]

    operations = [
        Freeze("trigger_revisions"),
        Freeze("trigger_switches"),
    ]

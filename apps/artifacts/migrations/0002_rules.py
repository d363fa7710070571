from django.db import migrations

from apps.core.immutable import Freeze


class Migration(migrations.Migration):
    dependencies = [("artifacts", "0001_initial")]

    operations = [
        Freeze("run_artifacts"),
    ]

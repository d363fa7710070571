from django.db import migrations

from apps.core.immutable import Freeze


class Migration(migrations.Migration):
    dependencies = [("audit", "0001_initial")]

    operations = [
        Freeze("audit_entries", keep=True),
    ]

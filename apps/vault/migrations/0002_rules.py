from django.db import migrations

from apps.core.immutable import Freeze


class Migration(migrations.Migration):
    dependencies = [("vault", "0001_initial")]

    operations = [
        Freeze("local_execution_context_recipes"),
        Freeze("local_secret_envelopes", keep=True),
        Freeze("vault_secret_switches", keep=True),
    ]

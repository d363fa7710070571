"""The `qinglong` command. What cannot work ends with a sentence and a code, never a traceback."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs a management command; exits 78 (as sysexits.h names it) when configuration or database cannot work."""
    os.umask(0o077)  # database, logs and keys are for nobody else; the launcher gives scripts the usual one
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "qinglong.settings")
    from django.core.management import ManagementUtility, get_commands, load_command_class
    from django.db import DatabaseError

    from qinglong.environment import ConfigurationError

    class Utility(ManagementUtility):
        """Lists what people use; what Django brings is still there, behind `help --commands`."""

        def main_help_text(self, commands_only: bool = False) -> str:
            if commands_only:
                return super().main_help_text(commands_only=True)
            shown = {name: app for name, app in get_commands().items() if app.startswith("apps.")}
            shown["changepassword"] = "django.contrib.auth"
            width = max(map(len, shown))
            lines = [
                f"  {name:<{width}}  {load_command_class(app, name).help}"
                for name, app in sorted(shown.items())
            ]
            usage = f"Usage: {self.prog_name} COMMAND; `{self.prog_name} help COMMAND` says more of one."
            return "\n".join([usage, "", *lines])

    try:
        Utility(sys.argv).execute()
    except ConfigurationError as error:
        _refuse(error.code, str(error))
    except DatabaseError:
        from django.db import connection

        from apps.core import health

        connection.close()
        wrong = health.unusable()
        if wrong is None:
            raise
        _refuse(*wrong)


def _refuse(code: str, sentence: str) -> None:
    print(f"qinglong: {sentence} [{code}]", file=sys.stderr)
    sys.exit(78)


if __name__ == "__main__":
    main()

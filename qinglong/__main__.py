"""The `qinglong` command. A configuration that cannot work ends with a sentence and a code, never a traceback."""

from __future__ import annotations

import os
import sys


def main() -> None:
    """Runs a management command; exits 78 (as sysexits.h names it) when the configuration is wrong."""
    os.umask(0o077)  # database, logs and keys are for nobody else; the launcher gives scripts the usual one
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "qinglong.settings")
    from django.core.management import execute_from_command_line

    from qinglong.environment import ConfigurationError

    try:
        execute_from_command_line(sys.argv)
    except ConfigurationError as error:
        print(f"qinglong: {error} [{error.code}]", file=sys.stderr)
        sys.exit(78)


if __name__ == "__main__":
    main()

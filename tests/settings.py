"""The product's own settings over a throw-away home folder."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

os.environ["QINGLONG_HOME"] = tempfile.mkdtemp(prefix="ql-test-")
os.environ.setdefault("QINGLONG_TIME_ZONE", "UTC")

from qinglong.settings import *  # noqa: F403
from qinglong.settings import DATABASES, HOME

if DATABASES["default"]["ENGINE"].endswith("sqlite"):
    # A file, so that races are tested with real connections.
    DATABASES["default"]["TEST"] = {"NAME": str(Path(HOME) / "test.sqlite3")}
PASSWORD_HASHERS = ["django.contrib.auth.hashers.MD5PasswordHasher"]
ALLOWED_HOSTS = ["testserver", "localhost", "127.0.0.1"]

"""Settings of worker processes that tests start: the test's own home folder and its database."""

from __future__ import annotations

import os

from qinglong.settings import *  # noqa: F403
from qinglong.settings import DATABASES

DATABASES["default"]["NAME"] = os.environ["TEST_DATABASE"]

"""Settings of a panel that a test can kill behind the start barrier; the product knows nothing of this."""

from __future__ import annotations

from qinglong.settings import *  # noqa: F403
from qinglong.settings import INSTALLED_APPS as PRODUCT

INSTALLED_APPS = [*PRODUCT, "tests.e2e.held.Held"]

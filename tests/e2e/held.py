"""Holds whoever carries out an approved action between the run with its receipt and the end of the execution.

While a file `hold` lies in the home, the process writes its pid into `held` there and stays: for a test to kill.
"""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import Any

from django.apps import AppConfig


class Held(AppConfig):
    name = "tests.e2e"
    label = "held"
    path = str(Path(__file__).parent)

    def ready(self) -> None:
        from django.conf import settings

        from apps.approvals import dispatching

        complete, home = dispatching._complete, Path(settings.HOME)

        def held(*given: Any) -> None:
            while (home / "hold").exists():
                (home / "held.new").write_text(str(os.getpid()))
                (home / "held.new").rename(home / "held")
                time.sleep(0.1)
            complete(*given)

        dispatching._complete = held

"""/metrics for Prometheus (api.md): off until a token is set, cheap, and without a name of anybody's.

Apps register what they have in their module `health`: gauges whose labels are words of ours, worked out in a
fixed number of queries however much there is.
"""

from __future__ import annotations

import hmac
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from django.conf import settings
from django.db import DatabaseError
from django.http import HttpRequest, HttpResponse
from django.views.decorators.http import require_safe

from apps.core import health, problems
from apps.core.errors import DomainError, NotFound, Unauthenticated

PREFIX = "qinglong_"

logger = logging.getLogger("qinglong.metrics")


@dataclass(frozen=True)
class Gauge:
    """A figure, or one for each value of a label; None among the values is left out."""

    name: str
    help: str
    label: str | None
    values: Mapping[str, float | None]

    @classmethod
    def one(cls, name: str, help: str, value: float | None) -> Gauge:
        """A figure without a label."""
        return cls(name, help, None, {"": value})

    @classmethod
    def by(cls, name: str, help: str, label: str, values: Mapping[str, float | None]) -> Gauge:
        """A figure for each value of the label: few, and known beforehand."""
        return cls(name, help, label, values)


Source = Callable[[], Iterable[Gauge]]

_sources: dict[str, Source] = {}


def register(name: str, source: Source) -> None:
    """Adds what an app can tell; its figures are left out while the database does not answer."""
    _sources[name] = source


@require_safe
def metrics(request: HttpRequest) -> HttpResponse:
    """All figures as text; 404 where no token is set, 401 without the right one."""
    token = settings.METRICS_TOKEN
    if token is None:
        return problems.of(NotFound())
    given = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(given.encode(), token.encode()):
        return problems.of(Unauthenticated())
    content, content_type = _text()
    return HttpResponse(content, content_type=content_type, headers={"Cache-Control": "no-store"})


def _text() -> tuple[bytes, str]:
    # Most installations have no token and need not load it.
    from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest
    from prometheus_client.core import GaugeMetricFamily

    class Figures:
        def collect(self) -> Iterator[GaugeMetricFamily]:
            for gauge in _gauges():
                family = GaugeMetricFamily(
                    PREFIX + gauge.name, gauge.help, labels=[] if gauge.label is None else [gauge.label]
                )
                for value, figure in gauge.values.items():
                    if figure is not None:
                        family.add_metric([] if gauge.label is None else [value], figure)
                yield family

    registry = CollectorRegistry(auto_describe=False)
    registry.register(Figures())
    return generate_latest(registry), CONTENT_TYPE_LATEST


def _gauges() -> Iterator[Gauge]:
    found = {problem.code for problem in health.recent()}
    yield Gauge.by(
        "problem", "Whether a check finds a problem.", "code",
        {code: float(code in found) for code in health.codes()},
    )  # fmt: skip
    if "database" in found:
        return
    for name, source in _sources.items():
        try:
            yield from list(source())
        except (DatabaseError, DomainError, OSError) as error:
            logger.warning("figures of %s could not be worked out: %s", name, type(error).__name__)

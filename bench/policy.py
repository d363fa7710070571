"""What a decision of the policy costs: one query, however many people and versions there are.

    python -m bench.policy [--people 200] [--versions 5]

On both engines. The floor is the plainest read of the same connection, made beside each decision.
"""

from __future__ import annotations

import argparse
import statistics
import time

from bench.stage import servers, stage

ROUNDS = 2000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--people", type=int, default=200)
    parser.add_argument("--versions", type=int, default=5)
    options = parser.parse_args()
    for server in servers():
        with stage(server) as place:
            print(
                place.engine, place.script("bench.policy:measure", str(options.people), str(options.versions))
            )


def measure(people: str, versions: str) -> None:
    """Inside Django: decisions about people of one project, one after the other."""
    from django.db import connection

    from apps.core import clock, ids
    from apps.identity.principals import PolicySubject
    from apps.projects.models import Project
    from apps.projects.policy import decide
    from apps.projects.services import Binding, append_role_binding

    by = PolicySubject("system", "bench")
    subjects = [PolicySubject("user", f"usr_{number}") for number in range(int(people))]
    for subject in subjects:
        for version in range(1, int(versions) + 1):
            binding = Binding("default", subject, version, "operator", str(ids.uuid7()), by, clock.now())
            append_role_binding(version - 1, binding)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")
    decisions, reads = [], []
    for number in range(ROUNDS):
        subject = subjects[number % len(subjects)]
        begun = time.perf_counter()
        assert decide(subject, "default", "run.start").effect == "allow"
        decisions.append(time.perf_counter() - begun)
        begun = time.perf_counter()
        Project.objects.filter(pk="default").values("id").first()
        reads.append(time.perf_counter() - begun)
    took, floor = (statistics.quantiles(times, n=20) for times in (decisions, reads))
    print(
        f"decision p50 {took[9] * 1000:.2f} ms, p95 {took[18] * 1000:.2f} ms;"
        f" {took[9] / floor[9]:.1f} × a plain read (p50 {floor[9] * 1000:.2f} ms)"
    )


if __name__ == "__main__":
    main()

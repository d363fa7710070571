"""The part "Files" of a run's page: what its script left in QINGLONG_ARTIFACTS, and what was not kept."""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise

from apps.artifacts import files
from apps.artifacts.collected import FILES_MAX
from apps.artifacts.models import Artifact
from apps.panel.file_words import WORDS, left_out
from apps.panel.run_page import Story
from apps.projects.policy import Grant
from apps.runs.models import ACTIVE_ATTEMPT


@dataclass(frozen=True)
class Files:
    """Of one attempt: its files, the bytes of all, what was left out as (number or None, words, code).

    `waits` while they are still to come, `gone` where history does not tell any more.
    """

    rows: list[Artifact]
    bytes: int
    left_out: list[tuple[int | None, Promise, str]]
    waits: bool
    gone: bool


def of(grant: Grant, story: Story, number: int | None) -> Files:
    """Of attempt `number`, or the last one; one query."""
    found = next((one for one in story.attempts if one.attempt == number), None) or story.attempt
    if found is None:
        return Files(
            [], 0, [], waits=not story.run.ended, gone=story.run.ended and story.run.started_at is not None
        )
    rows = files.page(grant, story.run.pk, attempt=found.attempt, limit=FILES_MAX).items
    told = [
        event.payload
        for step in story.steps
        for event, _facts in step.events
        if event.attempt_id == found.pk and "files" in event.payload
    ]
    left = left_out(told[-1]) if told else {}
    return Files(
        rows,
        sum(row.size for row in rows),
        [(None if code == "unexamined" else left[code], WORDS[code], code) for code in WORDS if code in left],
        waits=found.status in ACTIVE_ATTEMPT,
        gone=False,
    )

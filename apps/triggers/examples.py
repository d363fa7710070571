"""Three tasks to look at and run in the first minute, and starter texts of the same kind for new tasks.

An example carries a mark. It goes when somebody changes the task in more than its pin: from then on it is theirs,
and removing the examples leaves it alone. Triggers and switches do not count as a change.
"""

from __future__ import annotations

from dataclasses import dataclass

from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _

from apps.core.db import write_transaction
from apps.projects.policy import Grant
from apps.tasks import queries as tasks
from apps.tasks import slugs
from apps.tasks.models import Task
from apps.tasks.services import TaskDraft
from apps.triggers.drafts import TriggerDraft
from apps.triggers.services.making import Rights, make_task
from apps.triggers.services.switches import archive_task

PYTHON = """\
import os
import sys
import time

print(f"Hello from Python {sys.version.split()[0]}, I am", os.environ["QINGLONG_TASK"])
for step in range(1, 6):
    print(f"step {step} of 5")
    time.sleep(0.4)
print("done")
"""
SHELL = """\
# How full is the disk? A run fails when its script ends with another code than 0.
df -h .
used=$(df -P . | awk 'NR == 2 { sub("%", "", $5); print $5 }')
echo "$used % in use"
test "$used" -lt 95
"""
NODE = """\
const names = Object.keys(process.env).filter((name) => name.startsWith("QINGLONG_"));
console.log(`Hello from Node.js ${process.version}, I was given:`);
for (const name of names.sort()) console.log(`  ${name} = ${process.env[name]}`);
"""
DIARY = """\
# The working folder of a task stays from run to run.
date >> diary.txt
echo "$(wc -l < diary.txt) entries, the newest:"
tail -n 5 diary.txt
"""


@dataclass(frozen=True)
class Example:
    """One of the three; `schedule` is empty for one that runs by hand only."""

    key: str
    name: Promise
    description: Promise
    language: str
    source: str
    schedule: str = ""


EXAMPLES = (
    Example(
        "hello-python", _("Hello from Python"), _("An example: counts to five, so that there is a log to watch."),
        "python", PYTHON,
    ),
    Example(
        "disk-space", _("How full is the disk?"), _("An example: fails when the disk is nearly full."),
        "shell", SHELL,
    ),
    Example(
        "diary", _("Diary every ten minutes"), _("An example with a schedule: writes a line into a file of its own."),
        "shell", DIARY, "*/10 * * * *",
    ),
)  # fmt: skip
STARTERS = {"python": PYTHON, "node": NODE, "shell": SHELL}


def of_project(project_id: str) -> dict[str, Task]:
    """The examples that are there and still nobody's own, by key."""
    rows = Task.objects.filter(project_id=project_id, example__isnull=False, archived_at=None)
    there = {str(task.example): task for task in rows}
    return {example.key: there[example.key] for example in EXAMPLES if example.key in there}


def any_left(project_id: str) -> bool:
    """Whether there are examples to remove; one query."""
    return Task.objects.filter(project_id=project_id, example__isnull=False, archived_at=None).exists()


@write_transaction
def add_examples(rights: Rights) -> list[Task]:
    """Makes the examples that are not there, named in the active language; needs all three rights."""
    project_id = rights.create.project_id
    there = of_project(project_id)
    # The newest stands first in the list: the plainest comes last.
    return [_make(rights, example) for example in reversed(EXAMPLES) if example.key not in there]


@write_transaction
def remove_examples(grant: Grant) -> int:
    """Archives the examples that nobody made their own, history stays; needs `task.delete`. How many there were."""
    found = of_project(grant.project_id).values()
    for task in found:
        archive_task(grant, task.pk, task.version)
    return len(found)


def _make(rights: Rights, example: Example) -> Task:
    taken = tasks.slugs_like(rights.create.project_id, example.key)
    draft = TaskDraft(
        name=str(example.name),
        slug=slugs.free(example.key, taken),
        description=str(example.description),
        script={"language": example.language, "source": example.source},
        labels=[str(_("example"))],
    )
    triggers = [TriggerDraft(kind="cron", schedule=example.schedule)] if example.schedule else []
    return make_task(rights, draft, triggers, example=example.key)

"""The search text of the task list: words, and words for one field (`name:`, `command:`, `label:` …).

All words must be found, in any order and any case. "Quotation marks" keep blanks together. `schedule:` and
`status:` speak of things above tasks: whoever knows them turns them into conditions.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from django.db.models import BooleanField, Exists, OuterRef, Q, QuerySet
from django.db.models.expressions import RawSQL

from apps.core import db
from apps.tasks.models import Task, TaskExecutionRevision

FIELDS = ("name", "command", "schedule", "label", "status")
MAX_TERMS = 8
_TERM = re.compile(r'(?:(?P<field>[a-z]+)[:：])?(?:"(?P<quoted>[^"]*)"?|(?P<word>\S+))', re.IGNORECASE)
_LABELS = {
    "postgresql": (
        "EXISTS (SELECT 1 FROM jsonb_array_elements_text(tasks.labels) AS found(label) WHERE label ILIKE %s)"
    ),
    "sqlite": r"EXISTS (SELECT 1 FROM json_each(tasks.labels) WHERE json_each.value LIKE %s ESCAPE '\')",
}

Condition = Callable[[str], Q | Exists]


@dataclass(frozen=True)
class Term:
    """One word; `field` is one of FIELDS, or empty for a word that may stand anywhere."""

    field: str
    text: str


def parse(text: str) -> list[Term]:
    """The first MAX_TERMS terms of a search; a prefix that is none of FIELDS belongs to the word."""
    found = []
    for match in _TERM.finditer(text):
        field = (match["field"] or "").lower()
        word = match["quoted"] if match["quoted"] is not None else match["word"]
        if field and field not in FIELDS:
            field, word = "", match[0].replace('"', "")
        if word:
            found.append(Term(field, word))
    return found[:MAX_TERMS]


def matching(rows: QuerySet[Task], terms: list[Term], above: Mapping[str, Condition]) -> QuerySet[Task]:
    """The rows where every term is found; `above` gives the conditions for `schedule` and `status`."""
    for term in terms:
        rows = rows.filter(_condition(term, above))
    return rows


def _condition(term: Term, above: Mapping[str, Condition]) -> Q | Exists:
    match term.field:
        case "name":
            return _name(term.text)
        case "command":
            return _command(term.text)
        case "label":
            return _label(term.text)
        case "schedule" | "status":
            return above[term.field](term.text)
    return _name(term.text) | _label(term.text) | Q(_command(term.text)) | Q(above["schedule"](term.text))


def _name(text: str) -> Q:
    return Q(name__icontains=text) | Q(slug__icontains=text)


def _command(text: str) -> Exists:
    """What is executed, as its revision spells it: canonical JSON."""
    spelled = json.dumps(text, ensure_ascii=False)[1:-1]
    return Exists(
        TaskExecutionRevision.objects.filter(
            pk=OuterRef("revision_id"), execution_template__icontains=spelled
        )
    )


def _label(text: str) -> Q:
    pattern = "%" + re.sub(r"([\\%_])", r"\\\1", text) + "%"
    sql = _LABELS["postgresql" if db.is_postgresql() else "sqlite"]
    # Django has no look into a JSON list that both engines know; the text is a parameter.
    return Q(RawSQL(sql, [pattern], output_field=BooleanField()))  # noqa: S611

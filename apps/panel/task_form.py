"""The task form: texts of a page to the fields of a task and back, byte for byte.

Browsers send every line break of a text box as CR LF. A text that differs from the stored one in nothing else
therefore keeps its stored bytes, and a new one gets LF.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from django.http import QueryDict
from django.utils.functional import Promise
from django.utils.translation import gettext_lazy as _
from django.utils.translation import pgettext_lazy

from apps.core.errors import InvalidInput
from apps.panel import form_values, limits_part, retry_part
from apps.tasks import placement
from apps.tasks.documents import RevisionView, TaskView
from apps.tasks.execution import DEFAULT_GRACE_MS, DEFAULT_LOG_QUOTA, Body, Command, Script, Shell

KINDS: tuple[tuple[str, Promise], ...] = (
    ("script", pgettext_lazy("kind of task", "Script")),
    ("command", pgettext_lazy("kind of task", "Command")),
    ("shell", pgettext_lazy("kind of task", "Shell")),
)
LANGUAGES = (("python", "Python"), ("node", "Node.js"), ("typescript", "TypeScript"), ("shell", "Shell"))
CONCURRENCY: tuple[tuple[str, Promise, Promise], ...] = (
    ("queue", pgettext_lazy("overlap", "Wait"), _("later starts queue up")),
    ("skip", pgettext_lazy("overlap", "Skip"), _("a start while one runs is dropped and noted")),
    ("replace", pgettext_lazy("overlap", "Replace"), _("the running one is stopped first")),
    ("parallel", pgettext_lazy("overlap", "Side by side"), _("up to a number of runs at once")),
)
TEXTS = (
    "name", "slug", "description", "kind", "language", "source", "args", "argv", "shell", "work_dir", "before",
    "after", "timeout", "grace", "quota", "concurrency", "max_parallel", "priority", "labels", "requires",
    "requires_approval",
    *retry_part.TEXTS, *limits_part.TEXTS,
)  # fmt: skip
# Where the form shows a field of the API; the rest have the same name.
SHOWN_AT = {
    "script": "source", "command": "argv", "timeout_ms": "timeout", "kill_grace_ms": "grace",
    "log_quota_bytes": "quota", "retry": "retry_attempts", "limits": "limit_memory",
}  # fmt: skip
_BODY = {"script": "source", "command": "argv", "shell": "shell"}
_LINE_BREAK = re.compile(r"\r\n?|\n")
_MEBIBYTE = 1_048_576


@dataclass
class TaskForm:
    """What the form shows: texts by field, environment rows, rows of secrets, sentences by field."""

    values: dict[str, str]
    env: list[tuple[str, str]]
    stored: TaskView | None = None
    secrets: list[tuple[str, str, str]] = field(default_factory=list)
    errors: dict[str, list[str | Promise]] = field(default_factory=dict)

    @classmethod
    def blank(cls) -> TaskForm:
        """A task that does not exist yet."""
        return cls(_texts(None), [])

    @classmethod
    def of(cls, view: TaskView) -> TaskForm:
        """A task as it is stored."""
        uses = view.revision.execution.secrets
        rows = [(use.variable, use.secret, str(use.way)) for use in uses]
        return cls(_texts(view), list(view.env.items()), view, rows)

    @classmethod
    def of_revision(cls, view: RevisionView) -> TaskForm:
        """What a revision executed, with the task around it as it is now."""
        return cls.of(TaskView(view.task, view.revision, view.env))

    @classmethod
    def sent(cls, data: QueryDict, stored: TaskView | None) -> TaskForm:
        """What came from the browser, line breaks as LF except where nothing else was changed."""
        before = _texts(stored)
        values = {name: kept(data.get(name, ""), before[name]) for name in TEXTS}
        old = dict(stored.env) if stored else {}
        names, contents = data.getlist("env_name"), data.getlist("env_value")
        pairs = [
            (name, kept(content, old.get(name, "")))
            for name, content in zip(names, contents, strict=False)
            if name or content
        ]
        fields = ("secret_variable", "secret_name", "secret_way")
        rows = [
            (variable.strip(), secret.strip(), way)
            for variable, secret, way in zip(*map(data.getlist, fields), strict=False)
            if variable.strip() or secret.strip()
        ]
        return cls(values, pairs, stored, rows)

    @property
    def language(self) -> str:
        """The language of what runs, for colouring it."""
        return self.values["language"] if self.values["kind"] == "script" else "shell"

    @property
    def text(self) -> str:
        """What runs, as one text."""
        return self.values[_BODY.get(self.values["kind"], "shell")]

    @property
    def limits(self) -> list[tuple[Promise, str]]:
        """Those that are set, by name."""
        return limits_part.rows(self.values)

    @property
    def marked(self) -> bool:
        """Whether it needs an approval. A form never takes the mark back: that has a page of its own."""
        stored = self.stored is not None and self.stored.task.requires_approval
        return stored or self.values["requires_approval"] == "1"

    def fields(self) -> dict[str, Any]:
        """The fields of api.md; raises InvalidInput with all that cannot even be read."""
        self.errors = {}
        values = self.values
        found: dict[str, Any] = {
            "name": values["name"],
            "slug": values["slug"].strip() or (self.stored.task.slug if self.stored else None),
            "description": values["description"],
            **self._body(),
            "work_dir": values["work_dir"] or None,
            "env": self._environment(),
            "secrets": self._secrets(),
            "before": values["before"] or None,
            "after": values["after"] or None,
            "timeout_ms": self._scaled("timeout", 1000),
            "kill_grace_ms": self._scaled("grace", 1000),
            "log_quota_bytes": self._scaled("quota", _MEBIBYTE),
            "concurrency": values["concurrency"] or None,
            "max_parallel": self._whole("max_parallel") if values["concurrency"] == "parallel" else 1,
            "priority": self._whole("priority"),
            "retry": retry_part.read(values, self.errors),
            "limits": limits_part.read(values, self.errors),
            "labels": _listed(values["labels"]),
            "requires": {"labels": self._needed()},
            "requires_approval": self.marked,
        }
        if self.errors:
            raise InvalidInput(fields=self.errors)
        return found

    def refuse(self, refusal: InvalidInput) -> None:
        """Takes over the sentences of a service, each to its field; `form` for those of none."""
        found: dict[str, list[str | Promise]] = {}
        for name, sentences in refusal.fields.items():
            place = SHOWN_AT.get(name, name)
            if place in _BODY.values():
                place = _BODY.get(self.values["kind"], "kind")
            found[place if place in TEXTS or place in ("env", "secrets") else "form"] = list(sentences)
        self.errors = found or {"form": [refusal.detail]}

    def _body(self) -> dict[str, Any]:
        values = self.values
        match values["kind"]:
            case "command":
                return {"command": self._lines("argv", self._stored(Command))}
            case "shell":
                return {"shell": values["shell"]}
            case "script":
                args = self._lines("args", self._stored(Script))
                return {"script": {"language": values["language"], "source": values["source"], "args": args}}
        self.errors["kind"] = [_("Choose what runs.")]
        return {}

    def _stored(self, kind: type[Body]) -> tuple[str, ...]:
        body = self.stored.revision.execution.body if self.stored else None
        if not isinstance(body, kind):
            return ()
        return body.argv if isinstance(body, Command) else body.args if isinstance(body, Script) else ()

    def _lines(self, name: str, stored: tuple[str, ...]) -> list[str]:
        """One argument per line; the stored ones where the text is still theirs (they may hold line breaks)."""
        text = self.values[name]
        if stored and text == "\n".join(stored):
            return list(stored)
        return text.removesuffix("\n").split("\n") if text.strip("\n") else []

    def _environment(self) -> dict[str, str]:
        names = [name for name, _content in self.env]
        if "" in names:
            self.errors["env"] = [_("Every value needs a name.")]
        elif len(set(names)) < len(names):
            self.errors["env"] = [_("A name stands there twice.")]
        return dict(self.env)

    def _secrets(self) -> dict[str, Any]:
        variables = [variable for variable, _secret, _way in self.secrets]
        if "" in variables or any(not secret for _variable, secret, _way in self.secrets):
            self.errors["secrets"] = [_("Every secret needs a variable and its name.")]
        elif len(set(variables)) < len(variables):
            self.errors["secrets"] = [_("A name stands there twice.")]
        return {variable: {"secret": secret, "as": way} for variable, secret, way in self.secrets}

    def _needed(self) -> dict[str, str]:
        pairs = [item.partition("=") for item in _listed(self.values["requires"])]
        needed = {name.strip(): content.strip() for name, _equals, content in pairs}
        if len(needed) < len(pairs):
            self.errors["requires"] = [_("A name stands there twice.")]
        return needed

    def _scaled(self, name: str, factor: int) -> int | None:
        try:
            return form_values.scaled(self.values[name], factor)
        except ValueError:
            self.errors[name] = [form_values.NO_NUMBER]
            return None

    def _whole(self, name: str) -> int | None:
        text = self.values[name].strip()
        if not text:
            return None
        if not re.fullmatch(r"-?[0-9]{1,9}", text):
            self.errors[name] = [_("A whole number is expected.")]
            return None
        return int(text)


def _listed(text: str) -> list[str]:
    """What stands between commas, those of Chinese too."""
    return [item.strip() for item in re.split(r"[,，]", text) if item.strip()]


def kept(sent: str, stored: str) -> str:
    """What a browser sent with line breaks as LF; the stored text where nothing else was changed."""
    text = _LINE_BREAK.sub("\n", sent)
    return stored if text == _LINE_BREAK.sub("\n", stored) else text


def _texts(view: TaskView | None) -> dict[str, str]:
    texts = dict.fromkeys(TEXTS, "")
    texts |= {
        "kind": "script",
        "language": "python",
        "concurrency": "queue",
        "max_parallel": "2",
        "priority": "0",
    }
    texts |= {
        "grace": form_values.unscaled(DEFAULT_GRACE_MS, 1000),
        "quota": form_values.unscaled(DEFAULT_LOG_QUOTA, _MEBIBYTE),
        **retry_part.texts(view.task.retry if view else None),
    }
    if view is None:
        return texts
    task, execution = view.task, view.revision.execution
    return texts | {
        **_body_texts(execution.body),
        "name": task.name,
        "slug": task.slug,
        "description": task.description,
        "work_dir": execution.work_dir or "",
        "before": execution.before or "",
        "after": execution.after or "",
        "timeout": form_values.unscaled(execution.timeout_ms, 1000),
        "grace": form_values.unscaled(execution.kill_grace_ms, 1000),
        "quota": form_values.unscaled(execution.log_quota_bytes, _MEBIBYTE),
        **limits_part.texts(execution.limits),
        "concurrency": task.concurrency,
        "max_parallel": str(task.max_parallel if task.max_parallel > 1 else 2),
        "priority": str(task.priority),
        "labels": ", ".join(task.labels),
        "requires_approval": "1" if task.requires_approval else "",
        "requires": ", ".join(
            f"{name}={value}" if value else name
            for name, value in placement.labels_of(execution.requires).items()
        ),
    }


def _body_texts(body: Body) -> Mapping[str, str]:
    match body:
        case Command(argv):
            return {"kind": "command", "argv": "\n".join(argv)}
        case Shell(text):
            return {"kind": "shell", "shell": text}
        case Script(language, source, args):
            return {"kind": "script", "language": language, "source": source, "args": "\n".join(args)}

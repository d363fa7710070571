"""One run: the sentence, the facts, the timeline, the log, stop and retry."""

from __future__ import annotations

from typing import Any
from uuid import UUID

from django.http import (
    HttpRequest,
    HttpResponse,
    HttpResponseBase,
    HttpResponseRedirect,
    StreamingHttpResponse,
)
from django.urls import reverse
from django.utils.translation import gettext as _

from apps.artifacts import downloads
from apps.artifacts.files import open_file
from apps.artifacts.services import LogPart, read_log, stream_log
from apps.core.errors import DomainError, NotFound
from apps.panel import files_part, run_page, stop_part, terminal, words
from apps.panel.page import Action, Page
from apps.panel.views.tasks import once_key, to_ask
from apps.projects.errors import ApprovalRequired
from apps.projects.models import Project
from apps.runs import queries as runs
from apps.runs.models import AloneStart, Run
from apps.runs.services import Skipped, request_cancel, retry_run

TAIL = 65_536


class RunPage(Page):
    """What belongs to one run; the project is found through it, and masked like one that does not exist."""

    section = "runs"

    def locate(self, **kwargs: Any) -> Project:
        project_id = runs.project_of(kwargs["run"])
        if project_id is None:
            raise NotFound
        return self.visitor.project(project_id)


class ShowRun(RunPage):
    permissions = {"GET": "run.read"}
    template = "panel/run.html"
    part = "panel/run_live.html"

    def get(self, request: HttpRequest, run: UUID) -> HttpResponse:
        found = runs.get(run)
        story = run_page.story(found)
        part = bool(request.headers.get("X-Part"))
        context: dict[str, Any] = {
            "run": found,
            "title": found.task_name,
            "story": story,
            "stop": stop_part.of(story),
            "attempt": story.attempt,
            "state_word": words.state(found.status),
            "may_read": self.may("artifact.read"),
        }
        log: dict[str, Any] = {}
        if not part or found.status in run_page.BAD:
            log = self.log_part(request, found)
        context["alone"] = AloneStart.objects.filter(pk=found.pk).first()
        code = story.attempt.exit_code if story.attempt else None
        context["ending"] = run_page.ending(found, code, log.get("log_tail", b""))
        if context["may_read"] and (not part or found.ended):
            context["payloads"] = run_page.payloads(found)
            context["files"] = files_part.of(
                self.also("artifact.read"), story, _number(request.GET.get("attempt"))
            )
        return self.show(**context, **({} if part else log))

    def log_part(self, request: HttpRequest, run: Run) -> dict[str, Any]:
        """A page of the log for reading without script: the last 64 KiB, or what ends before `before`."""
        attempt = _number(request.GET.get("attempt"))
        before = _number(request.GET.get("before"))
        address = f"{reverse('panel:index').removesuffix('panel/')}api/v3/runs/{run.pk}/log"
        if attempt:
            address += f"?attempt={attempt}"
        chosen = {"log_address": address, "chosen_attempt": attempt}
        if not self.may("artifact.read"):
            return chosen | {"log_refused": _("You may see this run, not its log.")}
        start = max(0, before - TAIL) if before else -TAIL
        length = min(TAIL, before) if before else TAIL
        try:
            part = read_log(self.also("artifact.read"), run.pk, attempt=attempt, offset=start, length=length)
        except DomainError as refusal:
            return chosen | {"log_refused": str(refusal.detail)}
        return chosen | {
            "log": part.log,
            "log_tail": b"" if before else part.content,
            "log_text": _text(part),
            "log_start": part.start,
            "log_end": part.end,
        }


class StopRun(RunPage, Action):
    """Asks for a note, then stops: TERM, and KILL after the grace."""

    permissions = {"GET": "run.stop", "POST": "run.stop"}
    template = "panel/run_stop.html"

    def get(self, request: HttpRequest, run: UUID) -> HttpResponse:
        found = runs.get(run)
        queue = Run.objects.filter(task_id=found.task_id, status="queued", holds_place=False)
        waiting = len(
            queue.exclude(pk=found.pk).order_by("-priority", "queued_at", "id").values_list("pk")[:10]
        )
        title = _("Stop %(name)s?") % {"name": found.task_name}
        return self.show(title=title, run=found, waiting=waiting)

    def act(self, run: UUID) -> HttpResponse:
        note = self.request.POST.get("note", "").strip()
        outcome = request_cancel(self.grant, run, reason="user", note=note).outcome
        said = {
            "accepted": _("Stop requested."),
            "already_requested": _("It is being stopped already."),
            "already_terminal": _("It had ended already; nothing was stopped."),
        }
        self.say(said[outcome])
        return self.after(run=run)

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:run", kwargs["run"])


class RetryRun(RunPage, Action):
    permissions = {"POST": "run.retry"}

    def act(self, run: UUID) -> HttpResponse:
        try:
            outcome = retry_run(self.grant, run, idempotency_key=once_key(self.request, f"retry:{run}"))
        except ApprovalRequired:
            task = runs.get(run).task
            return to_ask(self, task, f"?from={run}")
        if isinstance(outcome, Skipped):
            self.say(_("Not started: an earlier run is still going."))
            return self.after(run=run)
        return HttpResponseRedirect(reverse("panel:run", args=[outcome.run.pk]))

    def after(self, **kwargs: Any) -> HttpResponse:
        return self.back("panel:run", kwargs["run"])


class DownloadLog(RunPage):
    """The whole log as it was written; 404 for everybody who may not read it."""

    permissions = {"GET": "run.read"}

    def get(self, request: HttpRequest, run: UUID) -> HttpResponse | StreamingHttpResponse:
        if not self.may("artifact.read"):
            raise NotFound
        found = stream_log(self.also("artifact.read"), run, attempt=_number(request.GET.get("attempt")))
        headers = {
            "Content-Disposition": f'attachment; filename="run-{run}.log"',
            "Content-Length": str(found.log.size),
            "X-Content-Type-Options": "nosniff",
            # Packing would hide the length and cost time on a file that is read once.
            "Content-Encoding": "identity",
        }
        kind = "application/octet-stream"
        if found.content is None:
            return HttpResponse(b"", content_type=kind, headers=headers)
        return StreamingHttpResponse(found.content, content_type=kind, headers=headers)


class DownloadFile(RunPage):
    """A file that the script left; 404 for everybody who may not read it."""

    permissions = {"GET": "run.read"}

    def get(self, request: HttpRequest, run: UUID, file: UUID) -> HttpResponseBase:
        if not self.may("artifact.read"):
            raise NotFound
        found = open_file(self.also("artifact.read"), run, file)
        return downloads.download(found, 0, found.row.size)


def _number(text: str | None) -> int | None:
    return int(text) if text and text.isascii() and text.isdigit() and len(text) < 16 else None


def _text(part: LogPart) -> str:
    """Decoded for display only; what is no UTF-8 is shown as a replacement character."""
    content = part.content
    if part.start > 0 and (at := content.find(b"\n")) >= 0:
        content = content[at + 1 :]
    return terminal.plain(content)

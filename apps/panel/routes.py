"""Addresses of the panel's pages, below `/panel/`, in the namespace `panel`."""

from __future__ import annotations

from django.urls import URLPattern, URLResolver, path

from apps.panel import task_routes
from apps.panel.views import (
    audit,
    dashboard,
    go,
    login_doctor,
    people,
    projects,
    run,
    run_stop,
    runs,
    sign_in_methods,
    tokens,
    workers,
)

pages: list[URLPattern | URLResolver] = [
    path("", dashboard.Dashboard.as_view(), name="index"),
    path("go/", go.Go.as_view(), name="go"),
    path("keys/", go.Keys.as_view(), name="keys"),
    *task_routes.pages,
    path("p/<str:p>/runs/", runs.RunList.as_view(), name="runs"),
    path("p/<str:p>/audit/", audit.AuditLog.as_view(), name="audit"),
    path("p/<str:p>/audit/check/", audit.CheckChain.as_view(), name="audit-check"),
    path("p/<str:p>/", projects.ShowProject.as_view(), name="project"),
    path("p/<str:p>/roles/", projects.ChangeRole.as_view(), name="project-roles"),
    path("p/<str:p>/archive/", projects.ArchiveProject.as_view(), name="project-archive"),
    path("p/<str:p>/restore/", projects.ArchiveProject.as_view(restore=True), name="project-restore"),
    path("projects/", projects.ProjectList.as_view(), name="projects"),
    path("runs/<uuid:run>/", run.ShowRun.as_view(), name="run"),
    path("runs/<uuid:run>/stop/", run.StopRun.as_view(), name="run-stop"),
    path("runs/<uuid:run>/stop/resolve/", run_stop.ResolveStop.as_view(), name="run-stop-resolve"),
    path("runs/<uuid:run>/stop/kill-escaped/", run_stop.KillEscaped.as_view(), name="run-kill-escaped"),
    path("runs/<uuid:run>/retry/", run.RetryRun.as_view(), name="run-retry"),
    path("runs/<uuid:run>/log/", run.DownloadLog.as_view(), name="run-log"),
    path("tokens/", tokens.Tokens.as_view(), name="tokens"),
    path("tokens/<uuid:token>/revoke/", tokens.RevokeToken.as_view(), name="token-revoke"),
    path("sign-in-methods/", sign_in_methods.SignInMethods.as_view(), name="sign-in-methods"),
    path("sign-in-methods/remove/", sign_in_methods.RemoveProvider.as_view(), name="sign-in-method-remove"),
    path("sign-in-doctor/", login_doctor.LoginDoctor.as_view(), name="login-doctor"),
    path("people/", people.People.as_view(), name="people"),
    path("workers/", workers.Workers.as_view(), name="workers"),
    path("workers/node/<str:node>/drain/", workers.SetDraining.as_view(draining=True), name="node-drain"),
    path("workers/node/<str:node>/resume/", workers.SetDraining.as_view(draining=False), name="node-resume"),
    path("workers/<str:worker>/drain/", workers.SetDraining.as_view(draining=True), name="worker-drain"),
    path("workers/<str:worker>/resume/", workers.SetDraining.as_view(draining=False), name="worker-resume"),
]

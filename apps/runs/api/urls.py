"""Routes of runs."""

from django.urls import path

from apps.runs.api import views

urlpatterns = [
    path("projects/<str:p>/runs", views.Runs.as_view()),
    path("projects/<str:p>/skips", views.Skips.as_view()),
    path("projects/<str:p>/tasks/<str:t>/runs", views.StartRun.as_view()),
    path("projects/<str:p>/tasks/<str:t>/break-glass", views.BreakGlass.as_view()),
    path("runs/<str:id>", views.OneRun.as_view()),
    path("runs/<str:id>/attempts", views.Attempts.as_view()),
    path("runs/<str:id>/events", views.Events.as_view()),
    path("runs/<str:id>/stop", views.StopRun.as_view()),
    path("runs/<str:id>/stop/resolve", views.ResolveStop.as_view()),
    path("runs/<str:id>/stop/kill-escaped", views.KillEscaped.as_view()),
    path("runs/<str:id>/retry", views.RetryRun.as_view()),
    path("runs/<str:id>/pin", views.PinRun.as_view()),
    path("runs/<str:id>/holds", views.Holds.as_view()),
]

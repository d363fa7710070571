"""Routes of triggers and of what they did."""

from django.urls import path

from apps.triggers.api import due, projects, triggers

urlpatterns = [
    path("projects/<str:p>/archive", projects.ArchiveProject.as_view()),
    path("projects/<str:p>/restore", projects.RestoreProject.as_view()),
    path("projects/<str:p>/schedule-preview", triggers.SchedulePreview.as_view()),
    path("projects/<str:p>/schedules/stranded", triggers.Stranded.as_view()),
    path("projects/<str:p>/tasks/<str:t>/due", due.Due.as_view()),
    path("projects/<str:p>/tasks/<str:t>/triggers", triggers.Triggers.as_view()),
    path("projects/<str:p>/tasks/<str:t>/triggers/<str:id>", triggers.OneTrigger.as_view()),
    path("projects/<str:p>/tasks/<str:t>/triggers/<str:id>/secret", triggers.Secret.as_view()),
]

"""What runs leave behind, over the API."""

from __future__ import annotations

from django.urls import path

from apps.artifacts.api.files import RunArtifact, RunArtifacts
from apps.artifacts.api.log import RunLog, SearchLog
from apps.artifacts.api.retention import PreviewRetention, ProjectRetention, Receipts, TaskRetention

urlpatterns = [
    path("runs/<str:id>/log", RunLog.as_view()),
    path("runs/<str:id>/log/search", SearchLog.as_view()),
    path("runs/<str:id>/artifacts", RunArtifacts.as_view()),
    path("runs/<str:id>/artifacts/<str:artifact>", RunArtifact.as_view()),
    path("projects/<str:p>/retention", ProjectRetention.as_view()),
    path("projects/<str:p>/retention/preview", PreviewRetention.as_view()),
    path("projects/<str:p>/retention/receipts", Receipts.as_view()),
    path("projects/<str:p>/tasks/<str:t>/retention", TaskRetention.as_view()),
]

"""Routes of approvals."""

from django.urls import path

from apps.approvals.api import execution, views

urlpatterns = [
    path("projects/<str:p>/approvals", views.Approvals.as_view()),
    path("approvals/<str:id>", views.OneApproval.as_view()),
    path("approvals/<str:id>/decision", views.Decision.as_view()),
    path("approvals/<str:id>/withdraw", views.Withdrawal.as_view()),
    path("approvals/<str:id>/execution", execution.Execution.as_view()),
    path("approvals/<str:id>/recovery", execution.ByHand.as_view()),
]

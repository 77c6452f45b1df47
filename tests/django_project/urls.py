from __future__ import annotations

from django.urls import path

from resilient_mw_integrations.django import marked
from tests.django_project.shop import views

urlpatterns = [
    path("health", views.health),
    path("state", views.state),
    path("hold", views.hold),
    path("gate", views.gates),
    path("sleep", views.sleep),
    marked(path("vital/<int:pk>/", lambda request, pk: views.sleep(request)), priority="critical"),
    path("check", views.check),
    path("async", views.asleep),
    path("stream", views.stream),
    path("astream", views.astream),
    path("transfer", views.transfer),
    marked(path("items", views.items), priority="exempt"),
]

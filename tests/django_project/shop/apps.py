from __future__ import annotations

from django.apps import AppConfig


class ShopConfig(AppConfig):  # type: ignore[misc]  # Django ships no types
    name = "tests.django_project.shop"
    label = "shop"

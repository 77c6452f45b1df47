"""A protected Django project in one file.

python examples/protected_django.py [port]      needs: pip install "resilient-mw[django]" waitress
python examples/protected_django.py check       what the system checks say; "resilience" lists the routes

Then, in another terminal:
    curl -i localhost:8000/checkout
    for i in $(seq 20); do curl -s -o /dev/null -w "%{http_code} " localhost:8000/report/7 & done; wait
"""

import sys
import time

import django
import waitress
from django.conf import settings
from django.core.management import execute_from_command_line
from django.core.wsgi import get_wsgi_application
from django.http import HttpRequest, JsonResponse
from django.urls import path
from django.views.decorators.http import require_safe

from resilient_mw import current, priority
from resilient_mw_integrations.django import marked, protect

if not settings.configured:
    settings.configure(
        SECRET_KEY="only an example",
        ALLOWED_HOSTS=["*"],  # it listens on this machine alone
        ROOT_URLCONF=__name__,
        INSTALLED_APPS=["resilient_mw_integrations.django"],
        MIDDLEWARE=[
            "resilient_mw_integrations.django.ResilienceMiddleware",  # clean answers of views that check()
            "django.middleware.common.CommonMiddleware",
        ],
        RESILIENT_MW={"limit": 4, "queue": 4, "name": "shop"},
    )
    django.setup()


@require_safe  # type: ignore[untyped-decorator]  # Django ships no types
@priority("critical")
def checkout(request: HttpRequest) -> JsonResponse:
    time.sleep(0.05)
    return JsonResponse({"seconds_left": current().remaining()})


def report(request: HttpRequest, number: int = 0) -> JsonResponse:
    for _ in range(10):
        current().check()  # a thread cannot be interrupted: it has to look
        time.sleep(0.1)
    return JsonResponse({"rows": 42, "report": number})


def health(request: HttpRequest) -> JsonResponse:
    return JsonResponse({"ok": True})


urlpatterns = [
    path("checkout", checkout),
    *marked([path("report", report), path("report/<int:number>", report)], priority="sheddable"),
    path("health", health),
]

application = protect(get_wsgi_application())

if __name__ == "__main__":
    if sys.argv[1:] and not sys.argv[1].isdigit():
        execute_from_command_line(sys.argv)
    else:
        # threads >= limit + queue + a few that answer health checks and refuse
        port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
        waitress.serve(application, host="127.0.0.1", port=port, threads=12)

"""What the middleware learns of its server's threads, and what comes of it: B26, where too few threads are left."""

from __future__ import annotations

import logging
import sys
from types import SimpleNamespace
from typing import Any
from weakref import WeakSet

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware, threads
from resilient_mw.wsgi.threads import WAITED, found, of_granian, tell_threads
from tests.wsgi.helpers import hello, refused
from tests.wsgi.servers import serve


@pytest.fixture(autouse=True)
def process_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing was told yet, and there are no applications of other tests to be judged."""
    monkeypatch.setattr(threads, "_told", [])
    monkeypatch.setattr(threads, "_unjudged", WeakSet())


def test_too_few_threads_are_complained_of_once_and_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    policy = ServerPolicy(limit=10, queue=20, threads=8)
    served, again = ResilienceMiddleware(hello, policy), ResilienceMiddleware(hello, policy)
    with pytest.warns(ResilienceWarning, match="8 worker threads, but limit=10, queue=20") as caught:
        assert ScriptedWSGI(served).run().status == "200 OK"
    assert len(caught) == 1
    assert ScriptedWSGI(served).run().status == ScriptedWSGI(again).run().status == "200 OK"
    assert len(caplog.records) == 1
    assert policy.snapshot().queue == 20


def test_a_queue_is_shortened_to_what_fits(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    policy = ServerPolicy(limit=10, queue=20, fit_queue=True)
    served = ResilienceMiddleware(hello, policy)
    assert policy.snapshot().queue == 20
    tell_threads(18, "a test")
    assert policy.snapshot().queue == 4
    assert "queue=20 is shortened to 4" in caplog.text
    assert ScriptedWSGI(served).run().status == "200 OK"
    # It stays so whatever is reloaded, and grows back where there is room.
    assert policy.reload(ServerPolicy(limit=10, queue=30, fit_queue=True)).snapshot().queue == 4
    policy.reload(limit=5)
    assert policy.snapshot().queue == 9


def test_a_reload_that_carries_the_threads_over_changes_nothing_else() -> None:
    policy, elsewhere, new = ServerPolicy(), ServerPolicy(), ServerPolicy(limit=3, queue=0)
    ResilienceMiddleware(hello, policy)
    tell_threads(100, "a test")
    ResilienceMiddleware(hello, elsewhere)
    with pytest.raises(ValueError, match="in force for another middleware"):
        policy.reload(elsewhere)
    in_force = policy.reload(new)
    assert (in_force.threads, in_force.slots) == (100, 3)
    assert new.snapshot().limit == policy.snapshot().limit == 3  # all of them speak for the service


def test_what_a_policy_says_counts_more_than_what_a_server_tells() -> None:
    policy = ServerPolicy(limit=2, queue=2, threads=8, fit_queue=True)
    ResilienceMiddleware(hello, policy)
    tell_threads(1, "a test")
    assert policy.snapshot().queue == 2


def test_who_is_made_later_knows_what_was_told() -> None:
    tell_threads(7, "a test")
    policy = ServerPolicy(limit=2, queue=2, fit_queue=True)
    ScriptedWSGI(ResilienceMiddleware(hello, policy)).run()
    assert policy.snapshot().queue == 1


def test_the_time_before_the_threads_is_charged() -> None:
    policy = ServerPolicy(deadline_default=1.0)
    served = ResilienceMiddleware(hello, policy)

    def answer(waited: float, path: str = "/") -> tuple[str, str | None]:
        driven = ScriptedWSGI(served, path=path, extra={WAITED: waited})
        run = driven.run()
        return run.status[:3], run.header("X-Refusal-Reason")

    assert answer(0.5) == ("200", None)
    assert answer(1.5) == ("504", "expired_on_arrival")
    assert answer(0.998) == ("504", "insufficient_budget")
    assert answer(1.5, "/healthz") == ("200", None)
    assert refused(policy) == {"expired_on_arrival": 1, "insufficient_budget": 1}


def started_by(**settings: Any) -> Any:
    """A `start_response` as gunicorn makes it."""

    class Response:
        cfg = SimpleNamespace(**settings)

        def start_response(self) -> None: ...

    return Response().start_response


@pytest.mark.parametrize(
    ("environ", "start_response", "threads_told"),
    [
        ({}, None, None),
        ({"SERVER_SOFTWARE": "gunicorn/27.0.1", "wsgi.multithread": False}, None, 1),
        ({"SERVER_SOFTWARE": "gunicorn/27.0.1", "wsgi.multithread": True}, print, None),
        (
            {"SERVER_SOFTWARE": "gunicorn/27.0.1", "wsgi.multithread": True},
            started_by(worker_class_str="gthread", threads=6),
            6,
        ),
        (
            {"SERVER_SOFTWARE": "gunicorn/27.0.1", "wsgi.multithread": True},
            started_by(worker_class_str="gevent", threads=1),
            None,
        ),
        ({"waitress.client_disconnected": print}, None, None),
        ({"mod_wsgi.process_group": "shop"}, None, 15),
        ({"SERVER_SOFTWARE": "Granian"}, None, None),  # made by a program, not by its command
    ],
)
def test_who_tells(
    monkeypatch: pytest.MonkeyPatch, environ: Any, start_response: Any, threads_told: int | None
) -> None:
    monkeypatch.setitem(sys.modules, "mod_wsgi", SimpleNamespace(threads_per_process=15))
    told = found(environ, start_response)
    assert (None if told is None else told[0]) == threads_told


@pytest.mark.parametrize(
    ("arguments", "variables", "count"),
    [
        (["/bin/granian", "--blocking-threads", "8", "app:app"], {}, 8),
        (["/bin/granian", "--blocking-threads=8"], {}, 8),
        (["/bin/granian"], {"GRANIAN_BLOCKING_THREADS": "9"}, 9),
        (["/bin/granian", "--blocking-threads", "8"], {"GRANIAN_BLOCKING_THREADS": "9"}, 8),
        (["/bin/granian", "--blocking-threads", "8", "--backpressure", "5"], {}, 5),
        (["/bin/granian"], {}, 512),
        (["/bin/granian", "--workers", "4"], {}, 128),
        (["/lib/granian/__main__.py", "--blocking-threads", "3"], {}, 3),
        (["/bin/other", "--blocking-threads", "3"], {"GRANIAN_BLOCKING_THREADS": "9"}, None),
        ([], {}, None),
    ],
)
def test_granians_arguments(arguments: list[str], variables: dict[str, str], count: int | None) -> None:
    told = of_granian(arguments, variables)
    assert (None if told is None else told[0]) == count


@pytest.mark.parametrize("kind", ["gunicorn", "waitress", "granian"])
def test_real_servers_tell_their_threads_by_themselves(kind: str) -> None:
    """Eight threads, five slots: of the ten places in the queue two are left beside one spare thread."""
    with serve(kind, "tests.wsgi.fitted_app:application") as server:
        assert server.state() == {"queue": 2, "threads": 8}

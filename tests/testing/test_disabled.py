from __future__ import annotations

import threading

import pytest

from resilient_mw.runtime import switch
from resilient_mw.testing import ScriptedWSGI, disabled
from resilient_mw.wsgi import ResilienceMiddleware
from tests.wsgi.helpers import hello

REFUSED = [("X-Request-Timeout-Ms", "0")]


def status() -> str:
    return ScriptedWSGI(ResilienceMiddleware(hello), headers=REFUSED).run().status[:3]


def test_inside_requests_pass_and_outside_they_are_judged() -> None:
    assert status() == "504"
    with disabled():
        assert status() == "200"
    assert status() == "504"


def test_it_nests_and_survives_errors() -> None:
    found: list[str] = []

    def fail() -> None:
        with disabled(), disabled():
            found.append(status())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert [*found, status()] == ["200", "504"]


def test_it_holds_for_other_threads() -> None:
    found: list[str] = []
    with disabled():
        thread = threading.Thread(target=lambda: found.append(status()))
        thread.start()
        thread.join(5)
    assert found == ["200"]


def test_one_of_two_that_overlap_does_not_end_the_other() -> None:
    first, second = disabled(), disabled()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    assert status() == "200"
    second.__exit__(None, None, None)
    assert status() == "504"


def test_it_decorates_a_test() -> None:
    assert disabled()(status)() == "200"
    assert status() == "504"


def test_the_switch_cannot_be_turned_on_more_often_than_off() -> None:
    with pytest.raises(RuntimeError, match="more often"):
        switch.turn_on()
    assert switch.DISABLED is False

"""Django in process: the setting, the middleware in both modes, system checks, the command, and statements."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import io
import json
import logging
import os
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from asgiref.sync import iscoroutinefunction, markcoroutinefunction

from resilient_mw import DeadlineExceeded, RouteRule, ServerPolicy, budget, current, priority
from resilient_mw.core.pages import RefusalPage
from resilient_mw.runtime import switch
from tests.django_project import ready
from tests.wsgi.helpers import outcomes, queued, slots_taken

ready()

from django.core import checks, signals  # noqa: E402  Django has to be set up first
from django.core.exceptions import ImproperlyConfigured  # noqa: E402
from django.core.handlers.wsgi import WSGIHandler  # noqa: E402
from django.core.management import CommandError, call_command  # noqa: E402
from django.db import OperationalError, connection, transaction  # noqa: E402
from django.http import FileResponse, HttpResponse, StreamingHttpResponse  # noqa: E402
from django.test import AsyncClient, AsyncRequestFactory, Client, RequestFactory, override_settings  # noqa: E402
from django.urls import path  # noqa: E402
from django.utils.deprecation import MiddlewareMixin  # noqa: E402

from resilient_mw_integrations.django import (  # noqa: E402
    ResilienceMiddleware,
    budgeted,
    marked,
    policy,
    protect,
)
from resilient_mw_integrations.django.checking import check_policy, check_protection  # noqa: E402
from resilient_mw_integrations.django.database import keep_budget  # noqa: E402
from resilient_mw_integrations.django.options import budgeted_aliases  # noqa: E402
from tests.django_project.shop.models import Item, create_table  # noqa: E402

GUARD = "resilient_mw_integrations.django.ResilienceMiddleware"


@pytest.fixture
def settings() -> Iterator[Callable[..., None]]:
    """Change settings of the project, for the test."""
    changed: list[Any] = []

    def change(**values: Any) -> None:
        override = override_settings(**values)
        override.enable()
        changed.append(override)

    yield change
    for override in reversed(changed):
        override.disable()


@pytest.fixture
def mine(settings: Any) -> ServerPolicy:
    """A policy of the test's own."""
    settings(RESILIENT_MW={"limit": 1, "queue": 1, "deadline_default": 30.0})
    return policy()


# -- the setting -------------------------------------------------------------------------------------------------------


def test_the_setting_is_one_policy_for_as_long_as_it_is_the_same(settings: Any) -> None:
    settings(RESILIENT_MW={"limit": 7, "databases": ["default"], "refusal_template": "busy.html"})
    assert policy() is policy()
    assert policy().limit == 7
    assert policy().refusal_page is not None
    assert budgeted_aliases() == {"default"}
    own = ServerPolicy(limit=9)
    settings(RESILIENT_MW=own)
    assert policy() is own
    assert budgeted_aliases() == set()
    settings(RESILIENT_MW=None)
    assert policy().limit == "auto"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"limit": 0}, r"RESILIENT_MW: limit=0 is not allowed"),
        ({"limt": 3}, r"RESILIENT_MW\['limt'\] is no field of ServerPolicy: did you mean 'limit'\?"),
        ({"owner": []}, r"RESILIENT_MW\['owner'\] is no field"),
        ({3: 4}, r"RESILIENT_MW\[3\] is no field"),
        ([("limit", 3)], "must be a dict"),
        ({"refusal_template": 3}, "refusal_template=3 is not allowed"),
        (
            {"databases": ["default", "nobody"]},
            r"RESILIENT_MW\['databases'\]=.* aliases of DATABASES, \['default'\]",
        ),
        ({"databases": "default"}, r"RESILIENT_MW\['databases'\]='default' is not allowed"),
    ],
)
def test_wrong_settings_name_the_field(settings: Any, given: Any, said: str) -> None:
    settings(RESILIENT_MW=given)
    with pytest.raises(ImproperlyConfigured, match=said):
        policy(), budgeted_aliases()
    (found,) = check_policy(None)
    assert found.id == "resilient_mw.E001"
    with pytest.raises(Exception, match="resilient_mw.E001"):
        call_command("check")


# -- system checks -----------------------------------------------------------------------------------------------------


def ids(*found: list[Any]) -> list[str]:
    return sorted(each.id for some in found for each in some)


def test_checks_have_nothing_to_say_of_a_project_that_is_in_order() -> None:
    assert check_policy(None) == check_protection(None) == []
    call_command("check", stdout=io.StringIO())
    assert {check_policy, check_protection} <= checks.registry.registry.registered_checks


def view(request: Any) -> Any:
    return HttpResponse("")


def test_the_environment_goes_before_the_setting(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESILIENT_MW_LIMIT", "7")
    settings(RESILIENT_MW={"limit": 3, "queue": 2})
    assert (policy().limit, policy().queue) == (7, 2)
    monkeypatch.setenv("RESILIENT_MW_LIMIT", "x")
    settings(RESILIENT_MW={"limit": 3})
    with pytest.raises(ImproperlyConfigured, match="RESILIENT_MW_LIMIT: limit='x' is not allowed"):
        policy()


def test_checks_name_marks_and_rules_that_do_not_fit(settings: Any) -> None:
    urls: Any = type(os)("urls_of_a_test")
    urls.urlpatterns = [marked(path("x", view), priority="golden")]
    settings(ROOT_URLCONF=urls)
    (found,) = check_policy(None)
    assert (found.id, found.level) == ("resilient_mw.E002", checks.ERROR)
    assert "'golden'" in found.msg
    urls.urlpatterns[:] = [marked(path("x", view), priority="critical")]

    @priority("critical")
    def nowhere(request: Any) -> Any: ...

    settings(RESILIENT_MW={"routes": [RouteRule("/gone")], "refusal_template": "gone.html"})
    told = check_policy(None)
    assert ids(told) == ["resilient_mw.E003", "resilient_mw.W001", "resilient_mw.W002"]
    assert any(each.msg.endswith("cannot be drawn: there is no template 'gone.html'") for each in told)
    settings(RESILIENT_MW={"refusal_template": "broken.html"})
    assert nowhere is not None
    assert ids(check_policy(None)) == ["resilient_mw.E003", "resilient_mw.W002"]


@pytest.mark.parametrize(
    ("middleware", "expected"),
    [
        ([GUARD, "django.middleware.common.CommonMiddleware"], []),
        (["django.middleware.common.CommonMiddleware", GUARD], ["resilient_mw.W003"]),
        ([GUARD, GUARD], ["resilient_mw.W003"]),
        ([], []),
    ],
)
def test_checks_want_the_middleware_first(settings: Any, middleware: list[str], expected: list[str]) -> None:
    settings(MIDDLEWARE=middleware)
    assert ids(check_protection(None)) == expected


@pytest.mark.parametrize(
    ("options", "databases", "expected"),
    [
        ({}, [], ["resilient_mw.W004", "resilient_mw.W005"]),
        ({"connect_timeout": 3}, [], ["resilient_mw.W005"]),
        ({"connect_timeout": 3}, ["main"], []),
        ({"connect_timeout": 3, "options": "-c statement_timeout=5000"}, [], []),
        ({"service": "mine"}, [], []),
    ],
)
def test_checks_want_times_for_postgres(
    monkeypatch: pytest.MonkeyPatch, settings: Any, options: Any, databases: list[str], expected: list[str]
) -> None:
    from django.conf import settings as all_settings

    known = {
        "default": {"ENGINE": ""},
        "main": {"ENGINE": "django.db.backends.postgresql", "OPTIONS": options},
    }
    monkeypatch.setattr(all_settings, "DATABASES", known)
    settings(RESILIENT_MW={"databases": databases})
    assert ids(check_protection(None)) == expected


# -- the command -------------------------------------------------------------------------------------------------------


def test_the_command_lists_each_route_with_its_class(settings: Any) -> None:
    settings(RESILIENT_MW={"routes": [RouteRule("/sleep", priority="sheddable")]})
    out = io.StringIO()
    call_command("resilience", stdout=out)
    head, *rows = out.getvalue().splitlines()
    assert head.split() == ["class", "slots", "deadline", "methods", "route", "view"]
    found = {line.split()[-2]: line.split() for line in rows if "tests.django_project" in line}
    assert found["/vital/<int:pk>/"][:4] == ["critical", "1", "10", "s"]
    assert found["/state"][0] == "exempt"
    assert found["/state"][-1] == "tests.django_project.shop.views.state"
    assert found["/sleep"][:2] == ["normal", "*"]
    classes = [line.split()[0] for line in rows if "tests.django_project" in line]
    assert classes == sorted(classes, key=["exempt", "critical", "normal"].index)
    assert "exempt as well, for GET and HEAD: /health," in out.getvalue()
    settings(RESILIENT_MW={"limit": -1})
    with pytest.raises(CommandError, match="limit=-1"):
        call_command("resilience")


# -- the middleware, sync ----------------------------------------------------------------------------------------------


def guarded(answer: Callable[[Any], Any]) -> Any:
    return ResilienceMiddleware(answer)


def get(where: str = "/sleep", **headers: str) -> Any:
    return RequestFactory().get(where, headers=headers)


def test_the_slot_is_held_until_the_response_is_closed(mine: ServerPolicy) -> None:
    response = guarded(lambda request: HttpResponse("x"))(get())
    assert slots_taken(mine) == 1
    response.close()
    response.close()
    assert slots_taken(mine) == 0
    assert outcomes(mine) == {"completed": 1}


def test_a_response_that_nobody_closes_gives_its_slot_back_when_it_is_gone(mine: ServerPolicy) -> None:
    middleware = guarded(lambda request: HttpResponse("x"))
    response = middleware(get())
    assert slots_taken(mine) == 1
    del response
    middleware(get()).close()
    assert slots_taken(mine) == 0


def test_a_streamed_response_knows_its_request_and_ends_with_its_close(mine: ServerPolicy) -> None:
    ended: list[float] = []

    def chunks() -> Iterator[bytes]:
        try:
            while True:
                yield str(current().remaining()).encode()
        finally:
            ended.append(current().remaining())

    response = guarded(lambda request: StreamingHttpResponse(chunks()))(get())
    body = iter(response)
    assert 0 < float(next(body)) <= 30
    assert 0 < float(next(body)) <= 30
    assert slots_taken(mine) == 1
    response.close()
    assert slots_taken(mine) == 0
    assert len(ended) == 1


def test_the_cookies_of_a_page_stay_apart(settings: Any) -> None:
    fields = [("Set-Cookie", "a=1; Path=/; HttpOnly"), ("Set-Cookie", "b=2; Max-Age=5"), ("Vary", "Cookie")]
    settings(RESILIENT_MW={"refusal_page": lambda refused: RefusalPage("busy", headers=fields)})
    answer = guarded(lambda request: HttpResponse("x"))(get(**{"X-Request-Timeout-Ms": "0"}))
    assert answer.status_code == 504
    assert "Set-Cookie" not in answer
    assert [answer.cookies[name].output(header="") for name in "ab"] == [
        " a=1; HttpOnly; Path=/",
        " b=2; Max-Age=5",
    ]
    assert "Cookie" in answer["Vary"]


def test_a_refusal_is_a_response_that_django_does_not_report_as_an_error(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings(MIDDLEWARE=[GUARD], RESILIENT_MW={"refusal_template": "busy.html"})
    with caplog.at_level(logging.WARNING):
        program = Client().get("/sleep", headers={"X-Request-Timeout-Ms": "0"})
        person = Client().get("/sleep", headers={"X-Request-Timeout-Ms": "0", "Accept": "text/html"})
    assert program.status_code == person.status_code == 504
    assert program["X-Refusal-Reason"] == person["X-Refusal-Reason"] == "expired_on_arrival"
    assert program["Content-Type"] == "application/problem+json"
    assert json.loads(program.content)["reason"] == "expired_on_arrival"
    assert "<h1>504: The deadline had passed on arrival</h1>" in person.content.decode()
    assert caplog.records == []
    assert slots_taken(policy()) == 0


def test_a_late_answer_is_dropped_with_all_that_it_holds(mine: ServerPolicy) -> None:
    file = io.BytesIO(b"rows")
    finished: list[object] = []
    signals.request_finished.connect(count := lambda **more: finished.append(1))
    try:

        def answer(request: Any) -> Any:
            while current().cancel_reason is None:
                pass
            return FileResponse(file)

        response = guarded(answer)(get(**{"X-Request-Timeout-Ms": "50"}))
        assert response.status_code == 504
        assert json.loads(response.content)["reason"] == "deadline_exceeded"
        assert file.closed
        assert finished == []
        response.close()
        assert finished == [1]
    finally:
        signals.request_finished.disconnect(count)
    assert slots_taken(mine) == 0
    assert outcomes(mine) == {"deadline": 1}


@pytest.mark.parametrize("error", [LookupError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_whatever_leaves_the_chain_gives_the_slot_back(
    mine: ServerPolicy, error: type[BaseException]
) -> None:
    def answer(request: Any) -> Any:
        raise error

    with pytest.raises(error):
        guarded(answer)(get())
    assert slots_taken(mine) == 0


def test_what_the_shell_adds_to_the_head_is_on_the_response(settings: Any) -> None:
    settings(RESILIENT_MW={"deadline_response_header": "X-Left-Ms"})

    def answer(request: Any) -> Any:
        current().mark_degraded()
        response = HttpResponse("x", headers={"X-Own": "1"})
        response.set_cookie("a", "1")
        response.set_cookie("b", "2")
        return response

    response = guarded(answer)(get())
    assert 0 < int(response["X-Left-Ms"]) <= 10_000
    assert response["X-Degraded"] == "1"
    assert response["X-Own"] == "1"
    assert set(response.cookies) == {"a", "b"}
    response.close()


def test_switched_off_it_does_nothing(mine: ServerPolicy) -> None:
    switch.turn_off()
    try:
        response = guarded(lambda request: StreamingHttpResponse([b"a", b"b"]))(get())
        assert b"".join(response) == b"ab"
        assert guarded(lambda request: HttpResponse("x"))(get()).content == b"x"
    finally:
        switch.turn_on()
    assert outcomes(mine) == {}


def test_a_view_that_check_stops_answers_504_without_an_error(
    settings: Any, caplog: pytest.LogCaptureFixture
) -> None:
    settings(MIDDLEWARE=[GUARD])
    with caplog.at_level(logging.WARNING):
        response = Client().get("/check", headers={"X-Request-Timeout-Ms": "100"})
    assert (response.status_code, json.loads(response.content)["reason"]) == (504, "deadline_exceeded")
    assert caplog.records == []


def test_a_smaller_budget_inside_a_view_is_the_projects_affair(mine: ServerPolicy) -> None:
    middleware = guarded(lambda request: HttpResponse(""))
    assert middleware.process_exception(get(), DeadlineExceeded()) is None
    assert middleware.process_exception(get(), LookupError()) is None
    with budget(0):
        response = middleware.process_exception(get(), DeadlineExceeded())
    assert response.status_code == 504
    assert "X-Refusal-Reason" not in response


def test_both_at_once_guard_once(settings: Any) -> None:
    settings(MIDDLEWARE=[GUARD], RESILIENT_MW={"limit": 1, "queue": 0})
    application = protect(WSGIHandler())
    environ = RequestFactory()._base_environ(PATH_INFO="/sleep")
    statuses: list[str] = []
    body = application(environ, lambda status, headers, exc_info=None: statuses.append(status))
    assert b"".join(body)
    assert slots_taken(policy()) == 1
    body.close()
    assert statuses == ["200 OK"]
    assert slots_taken(policy()) == 0
    assert outcomes(policy()) == {"completed": 1}


def test_signals_and_queries_of_a_view_see_the_request(settings: Any) -> None:
    settings(RESILIENT_MW={"deadline_default": 17.0})
    seen: list[float] = []
    signals.request_started.connect(look := lambda **more: seen.append(current().remaining()))
    try:
        body = protect(WSGIHandler())(RequestFactory()._base_environ(PATH_INFO="/sleep"), lambda *more: None)
        seen.append(float(b"".join(body)))
        body.close()
    finally:
        signals.request_started.disconnect(look)
    assert all(10 < each <= 17 for each in seen)
    assert len(seen) == 2


# -- the middleware, async ---------------------------------------------------------------------------------------------


def aget(where: str = "/async", **headers: str) -> Any:
    return AsyncRequestFactory().get(where, headers=headers)


async def until(holds: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not holds():  # noqa: ASYNC110  nobody tells
            await asyncio.sleep(0.01)


async def test_async_the_slot_is_held_until_the_response_is_closed(mine: ServerPolicy) -> None:
    async def answer(request: Any) -> Any:
        return HttpResponse(str(current().remaining()))

    middleware = guarded(answer)
    response = await middleware(aget())
    assert 0 < float(response.content) <= 30
    assert slots_taken(mine) == 1
    await asyncio.to_thread(response.close)  # as Django does
    await until(lambda: slots_taken(mine) == 0)
    response = await middleware(aget())
    del response
    gc.collect()
    await until(lambda: slots_taken(mine) == 0)
    assert outcomes(mine) == {"completed": 2}


async def test_async_a_stream_holds_the_slot_and_ends_at_its_deadline(mine: ServerPolicy) -> None:
    ended: list[str] = []

    async def chunks() -> AsyncIterator[bytes]:
        try:
            yield str(current().remaining()).encode()
            await asyncio.sleep(15)
            yield b"never"
        finally:
            ended.append("ended")

    async def answer(request: Any) -> Any:
        return StreamingHttpResponse(chunks())

    response = await guarded(answer)(aget(**{"X-Request-Timeout-Ms": "1000"}))
    body = aiter(response)
    assert 0 < float(await anext(body)) <= 1.0
    assert slots_taken(mine) == 1
    with pytest.raises(DeadlineExceeded):
        await anext(body)
    assert ended == ["ended"]
    # Django closes no response whose stream has failed.
    await until(lambda: slots_taken(mine) == 0)


async def test_async_refusals_and_lateness(settings: Any, caplog: pytest.LogCaptureFixture) -> None:
    settings(MIDDLEWARE=[GUARD])
    with caplog.at_level(logging.WARNING, "django"):
        refused = await AsyncClient().get("/async", headers={"X-Request-Timeout-Ms": "0"})
        late = await AsyncClient().get("/async?s=15", headers={"X-Request-Timeout-Ms": "100"})
        served = await AsyncClient().get("/async")
    assert (refused.status_code, refused["X-Refusal-Reason"]) == (504, "expired_on_arrival")
    assert (late.status_code, json.loads(late.content)["reason"]) == (504, "deadline_exceeded")
    assert "X-Refusal-Reason" not in late
    assert served.status_code == 200
    assert caplog.records == []
    await until(lambda: slots_taken(policy()) == 0)


async def test_b25_async_who_is_cancelled_in_a_view_has_left(mine: ServerPolicy) -> None:
    inside = asyncio.Event()

    async def answer(request: Any) -> Any:
        inside.set()
        await asyncio.sleep(15)

    middleware = guarded(answer)
    task = asyncio.create_task(middleware(aget()))
    await inside.wait()
    waits = asyncio.create_task(middleware(aget()))
    await until(lambda: queued(mine) == 1)
    waits.cancel()
    task.cancel()
    for each in (waits, task):
        with pytest.raises(asyncio.CancelledError):
            await each
    await until(lambda: slots_taken(mine) == queued(mine) == 0)
    assert outcomes(mine) == {"client_disconnect": 1}


async def test_a_chain_is_known_by_its_mark_where_django_says_nothing_else(
    mine: ServerPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    def of_5_0(self: Any, get_response: Any) -> None:
        self.get_response = get_response
        if iscoroutinefunction(get_response):
            markcoroutinefunction(self)

    monkeypatch.setattr(MiddlewareMixin, "__init__", of_5_0)

    async def answer(request: Any) -> Any:
        return HttpResponse("async")

    response = guarded(lambda request: HttpResponse("sync"))(get())
    assert response.content == b"sync"
    response.close()
    response = await guarded(answer)(aget())
    assert response.content == b"async"
    response.close()
    await until(lambda: outcomes(mine) == {"completed": 2})


async def test_async_an_answer_that_nobody_gets_holds_no_slot_however_long_it_lives(
    mine: ServerPolicy,
) -> None:
    kept: list[Any] = []  # as a traceback does

    async def answer(request: Any) -> Any:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.sleep(15)
        kept.append(HttpResponse("late"))
        return kept[0]

    assert (await guarded(answer)(aget(**{"X-Request-Timeout-Ms": "100"}))).status_code == 504
    assert len(kept) == 1
    await until(lambda: slots_taken(mine) == 0)


async def test_async_an_answer_that_cannot_be_sent_holds_no_slot_however_long_it_lives(
    mine: ServerPolicy,
) -> None:
    class Unsendable(HttpResponse):  # type: ignore[misc]  # Django ships no types
        def items(self) -> Any:
            raise LookupError("no such header")

    kept = Unsendable("never")

    async def answer(request: Any) -> Any:
        return kept

    with pytest.raises(LookupError, match="no such header"):
        await guarded(answer)(aget())
    await until(lambda: slots_taken(mine) == 0)
    assert outcomes(mine) == {"error": 1}


async def test_async_a_cancellation_of_the_views_own_is_an_error(mine: ServerPolicy) -> None:
    async def answer(request: Any) -> Any:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        await guarded(answer)(aget())
    assert outcomes(mine) == {"error": 1}
    assert slots_taken(mine) == 0


# -- statements --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[["default"], []], ids=["named", "not named"])
def named(request: pytest.FixtureRequest, settings: Any) -> Iterator[bool]:
    """An empty table, on a connection that obeys the budget if it is named."""
    settings(RESILIENT_MW={"databases": request.param})
    before, connection.execute_wrappers = connection.execute_wrappers, []
    create_table()
    Item.objects.all().delete()
    for _ in range(2):  # as when a connection is made anew
        keep_budget(None, connection)
    yield bool(request.param)
    connection.execute_wrappers = before


def two_writes(left: float) -> None:
    with transaction.atomic():
        Item.objects.create(name="first")
        with budget(left):
            Item.objects.create(name="second")


def test_no_statement_is_sent_when_the_time_is_over_and_what_was_begun_is_rolled_back(named: bool) -> None:
    if not named:
        two_writes(0)
        assert Item.objects.count() == 2
        return
    with pytest.raises(DeadlineExceeded):
        two_writes(0)
    assert Item.objects.count() == 0
    two_writes(20)
    Item.objects.all().delete()
    with transaction.atomic():
        Item.objects.create(name="kept")
        with budget(0.2) as left, contextlib.suppress(DeadlineExceeded), transaction.atomic():
            Item.objects.create(name="gone")
            while left.cancel_reason is None:
                pass
            Item.objects.create(name="gone, too")
    # Rolling back to the savepoint was let through, or the whole block would be lost.
    assert [item.name for item in Item.objects.all()] == ["kept"]


def test_a_connection_that_is_not_named_obeys_within_a_block(named: bool) -> None:
    assert len(connection.execute_wrappers) == int(named)
    with budget(0):
        with budgeted(connection), pytest.raises(DeadlineExceeded):
            Item.objects.count()
        if not named:
            assert Item.objects.count() == 0


def test_an_error_of_the_database_is_one_before_the_deadline() -> None:
    with budgeted(connection), budget(20), connection.cursor() as cursor, pytest.raises(OperationalError):
        cursor.execute("SELECT * FROM nowhere")


def test_the_page_is_left_to_the_document_for_a_template_that_is_not_there(
    settings: Any, tmp_path: Path
) -> None:
    settings(MIDDLEWARE=[GUARD], RESILIENT_MW={"refusal_template": "gone.html"})
    response = Client().get("/sleep", headers={"X-Request-Timeout-Ms": "0", "Accept": "text/html"})
    assert response["Content-Type"] == "application/problem+json"

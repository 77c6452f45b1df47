"""What the Django route source finds: labels, marks and classes, as Django resolves. B82 and B83 for Django."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from resilient_mw import ResilienceWarning, deadline, exempt, priority
from resilient_mw.core.routes import Route
from resilient_mw.runtime.protection import Protection
from tests.django_project import ready
from tests.integrations.serving import http_scope, wsgi_environ

ready()

from django.conf.urls.i18n import i18n_patterns  # noqa: E402  Django has to be set up first
from django.contrib.auth.decorators import login_required  # noqa: E402
from django.core.handlers.asgi import ASGIHandler  # noqa: E402
from django.core.handlers.wsgi import WSGIHandler  # noqa: E402
from django.http import HttpResponse  # noqa: E402
from django.test import override_settings  # noqa: E402
from django.urls import Resolver404, include, path, re_path, register_converter, resolve  # noqa: E402
from django.urls.converters import StringConverter  # noqa: E402
from django.utils import translation  # noqa: E402
from django.utils.decorators import method_decorator  # noqa: E402
from django.utils.functional import lazy  # noqa: E402
from django.views import View  # noqa: E402
from django.views.decorators.csrf import csrf_exempt  # noqa: E402
from django.views.decorators.http import require_POST  # noqa: E402
from rest_framework.decorators import action, api_view  # noqa: E402
from rest_framework.response import Response  # noqa: E402
from rest_framework.routers import SimpleRouter  # noqa: E402
from rest_framework.views import APIView  # noqa: E402
from rest_framework.viewsets import ViewSet  # noqa: E402

from resilient_mw_integrations.django import marked, route_source  # noqa: E402
from resilient_mw_integrations.django.routes import DjangoRoutes  # noqa: E402
from resilient_mw_integrations.django.views import name_of  # noqa: E402

Urlconf = Callable[..., DjangoRoutes]


@pytest.fixture
def urlconf() -> Iterator[Urlconf]:
    """Make a URLconf that of the project, for the test."""
    changed: list[Any] = []

    def use(*patterns: Any, **settings: Any) -> DjangoRoutes:
        module = types.ModuleType("made_by_a_test")
        module.urlpatterns = list(patterns)  # type: ignore[attr-defined]
        override = override_settings(ROOT_URLCONF=module, **settings)
        override.enable()
        changed.append(override)
        return DjangoRoutes()

    yield use
    for override in reversed(changed):
        override.disable()
    translation.activate("en")


def view() -> Any:
    """Return a view of its own, so that a mark on it is nobody else's."""

    def view(request: Any, **values: Any) -> Any:
        return HttpResponse("")

    return view


def label(routes: DjangoRoutes, where: str, method: str = "GET", **more: str) -> str | None:
    route = routes.resolve(where, wsgi_environ(where, method, **more))
    return None if route is None else route.template


def priority_of(routes: DjangoRoutes, where: str, method: str = "GET") -> str | None:
    route = routes.resolve(where, wsgi_environ(where, method))
    return None if route is None or route.mark is None else route.mark.priority


def by_template(routes: DjangoRoutes) -> dict[str, Route]:
    return {route.template: route for route in routes.routes()}


# -- exactly the view that Django would pick ---------------------------------------------------------------------------


def test_b83_each_request_gets_the_class_of_the_view_that_serves_it(urlconf: Urlconf) -> None:
    routes = urlconf(
        path("items/special/", priority("critical")(view())),
        path("items/<int:pk>/", priority("sheddable")(view())),
        path("items/<slug:name>/", priority("normal")(view())),
        path(
            "shop/", include([path("<uuid:id>", exempt(view())), re_path(r"^(?P<year>[0-9]{4})/$", view())])
        ),
        re_path(r"^old/(?:a|b)/(\w+)\.html?$", priority("critical")(view())),
        path("files/<path:rest>", priority("sheddable")(view())),
        path("", view()),
    )
    for _ in range(2):  # the second time from memory
        assert priority_of(routes, "/items/special/") == "critical"
        assert priority_of(routes, "/items/7/") == "sheddable"
        assert priority_of(routes, "/items/x-7/") == "normal"
        assert priority_of(routes, "/files/a/b/c") == "sheddable"
        assert priority_of(routes, "/old/b/x.htm") == "critical"
        assert label(routes, "/") == "/"
    assert label(routes, "/items/7/") == "/items/<int:pk>/"
    assert label(routes, "/shop/1990/") == "/shop/<year>/"
    assert label(routes, "/old/a/x.html") == "/old//<arg1>.html"
    assert label(routes, "/files/a/b/c") == "/files/<path:rest>"


@pytest.mark.parametrize(
    "where",
    ["/items/7", "/items//", "/nowhere/", "/shop/", "/shop/199/", "/files/", "/items/7/x", "/ITEMS/7/"],
)
def test_what_django_answers_without_a_view_is_no_route(urlconf: Urlconf, where: str) -> None:
    routes = urlconf(
        path("items/<int:pk>/", view()),
        path("shop/", include([re_path(r"^(?P<year>[0-9]{4})/$", view())])),
        path("files/<path:rest>", view()),
    )
    with pytest.raises(Resolver404):
        resolve(where)
    assert label(routes, where) is None


def test_the_views_are_those_of_django_for_many_paths(urlconf: Urlconf) -> None:
    views = [view() for _ in range(8)]
    marks = [priority(f"class{number}") for number in range(8)]
    a, b, c, d, e, f, g, h = (mark(each) for mark, each in zip(marks, views, strict=True))
    routes = urlconf(
        path("a", a),
        path("a", include([path("b/", b), path("<str:x>/c", c)])),
        re_path(r"^a?b", include([re_path(r"c$", d)])),
        re_path(r"d/+e", e),
        re_path(r"^h/?i$", h),
        path("<path:any>/end/", f),
        path("<str:one>", g),
    )
    parts = [
        "a",
        "b",
        "hi",
        "h/i",
        "h//i",
        "ab",
        "ab/",
        "ax/c",
        "abc",
        "bc",
        "bxc",
        "d/e",
        "xd//ee",
        "x/y/end/",
        "x/end/",
        "x",
        "a/",
        "é",
        "ab/c",
        "",
    ]
    for part in parts:
        where = f"/{part}"
        try:
            expected = f"class{views.index(resolve(where).func)}"
        except Resolver404:
            assert label(routes, where) is None, where
        else:
            assert priority_of(routes, where) == expected, where


def test_converters_of_the_project_are_not_run(urlconf: Urlconf) -> None:
    ran: list[str] = []

    class Asking(StringConverter):  # type: ignore[misc]  # Django ships no types
        regex = "[a-z/]+"

        def to_python(self, value: str) -> str:
            ran.append(value)
            raise ValueError

    register_converter(Asking, "asking")
    routes = urlconf(path("x/<asking:it>/<int:pk>/", view()))
    assert label(routes, "/x/ab/c/7/") == "/x/<asking:it>/<int:pk>/"
    assert label(routes, "/x/ab/c/d/") is None
    assert ran == []


def test_b10_only_the_exact_path_reaches_an_exempt_view(urlconf: Urlconf) -> None:
    routes = urlconf(path("up", exempt(view())), path("v1.0/", exempt(view())))
    assert priority_of(routes, "/up") == "exempt"
    for where in ("/upx", "/up/", "/UP", "/up/../x", "//up", "/v1x0/", "/up%2f", "up", ""):
        assert label(routes, where) is None, where


def test_under_asgi_the_root_path_is_taken_off_as_django_does(urlconf: Urlconf) -> None:
    routes = urlconf(path("x/", view()))

    def found(where: str, **more: str) -> bool:
        return routes.resolve(where, http_scope(where, **more)) is not None

    assert found("/x/")
    assert found("/app/x/", root_path="/app")
    assert not found("/app/x/")
    with override_settings(FORCE_SCRIPT_NAME="/app"):
        assert found("/app/x/")
        # WSGI servers have split the path already.
        assert label(routes, "/x/", SCRIPT_NAME="/app") == "/x/"
    assert routes.resolve("/x/", {"type": "websocket", "path": "/x/"}) is None


def test_another_urlconf_of_the_settings_is_seen(urlconf: Urlconf) -> None:
    routes = urlconf(path("old", view()))
    assert label(routes, "/old") == "/old"
    urlconf(path("new", view()))
    assert label(routes, "/old") is None
    assert label(routes, "/new") == "/new"


def test_a_urlconf_that_includes_itself_ends(urlconf: Urlconf) -> None:
    again: list[Any] = [path("leaf/", priority("critical")(view()))]
    again.append(path("deeper/", include(again)))
    routes = urlconf(path("top/", include(again)))
    assert priority_of(routes, "/top/leaf/") == "critical"
    assert label(routes, "/top/deeper/deeper/leaf/") == "/top/deeper/*"


# -- languages ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefixed", [True, False])
def test_prefixes_of_languages_are_one_label(urlconf: Urlconf, prefixed: bool) -> None:
    routes = urlconf(
        path("plain/", view()),
        *i18n_patterns(
            path("about/", priority("critical")(view())),
            path("<int:pk>/", view()),
            prefix_default_language=prefixed,
        ),
    )
    translation.activate("de")  # left over from the request before
    assert label(routes, "/de/about/") == "/<language>/about/"
    assert label(routes, "/de/7/") == "/<language>/<int:pk>/"
    assert label(routes, "/fr/about/") is None
    assert label(routes, "/plain/") == "/plain/"
    assert label(routes, "/about/") == (None if prefixed else "/about/")
    assert priority_of(routes, "/de/about/") == "critical"
    assert translation.get_language() == "de"
    templates = set(by_template(routes))
    assert {"/<language>/about/", "/plain/"} <= templates
    assert ("/about/" in templates) is not prefixed


def test_translated_patterns_are_matched_in_the_language_of_the_path(urlconf: Urlconf) -> None:
    spoken = {"en": "about/", "de": "ueber/"}
    word = lazy(lambda: spoken[translation.get_language() or "en"], str)()
    routes = urlconf(*i18n_patterns(path(word, view())))
    assert label(routes, "/de/ueber/") == "/<language>/ueber/"
    assert label(routes, "/en/about/") == "/<language>/about/"
    assert label(routes, "/de/about/") is None


# -- B82: marks in either order ----------------------------------------------------------------------------------------

MARKS = [priority("critical", cost=3), deadline(maximum=2.5)]


def wrapping(function: Any) -> Any:
    @functools.wraps(function)
    def wrapper(*args: Any, **values: Any) -> Any:
        return function(*args, **values)

    return wrapper


def both(function: Any) -> Any:
    for mark in MARKS:
        function = mark(function)
    return function


@pytest.mark.parametrize("other", [require_POST, csrf_exempt, login_required, wrapping, functools.partial])
@pytest.mark.parametrize("outside", [True, False])
def test_b82_marks_count_above_and_below_decorators_of_views(
    urlconf: Urlconf, other: Any, outside: bool
) -> None:
    made = both(other(view())) if outside else other(both(view()))
    routes = urlconf(path("x/<int:pk>/", made))
    route = routes.resolve("/x/7/", wsgi_environ("/x/7/"))
    assert route is not None
    assert route.mark is not None
    assert (route.mark.priority, route.mark.cost) == ("critical", 3)
    assert route.mark.deadline is not None
    assert route.mark.deadline.maximum == 2.5


def test_b82_marks_on_view_classes(urlconf: Urlconf) -> None:
    @priority("sheddable")
    class Base(View):  # type: ignore[misc]  # Django ships no types
        def get(self, request: Any) -> Any: ...

    class Inherits(Base):
        @priority("critical")
        def post(self, request: Any) -> Any: ...

    @method_decorator(priority("critical"), name="dispatch")
    class OnDispatch(View):  # type: ignore[misc]  # Django ships no types
        def get(self, request: Any) -> Any: ...

    class OnMethod(View):  # type: ignore[misc]  # Django ships no types
        @method_decorator(require_POST)
        @method_decorator(priority("critical"))
        def post(self, request: Any) -> Any: ...

        def get(self, request: Any) -> Any: ...

    routes = urlconf(
        path("base/", Base.as_view()),
        path("inherits/", login_required(Inherits.as_view())),
        path("dispatch/", OnDispatch.as_view()),
        path("method/", OnMethod.as_view()),
        path("as-view/", priority("critical")(OnMethod.as_view())),
        path("entry/", marked(path("", OnMethod.as_view()), priority="sheddable").callback),
        marked(path("marked/", OnMethod.as_view()), priority="sheddable"),
    )
    assert priority_of(routes, "/base/") == priority_of(routes, "/base/", "HEAD") == "sheddable"
    assert priority_of(routes, "/inherits/") == "sheddable"
    assert priority_of(routes, "/inherits/", "POST") == "critical"
    assert priority_of(routes, "/dispatch/") == priority_of(routes, "/dispatch/", "POST") == "critical"
    assert (priority_of(routes, "/method/"), priority_of(routes, "/method/", "POST")) == (None, "critical")
    assert priority_of(routes, "/as-view/") == "critical"
    assert priority_of(routes, "/marked/") == "sheddable"
    assert priority_of(routes, "/marked/", "POST") == "critical"
    methods = [route.methods for route in routes.routes() if route.template == "/method/"]
    assert methods == [frozenset({"GET", "HEAD", "OPTIONS"}), frozenset({"POST"})]


def test_b82_marks_of_views_of_rest_framework(urlconf: Urlconf) -> None:
    @priority("critical")
    class Api(APIView):  # type: ignore[misc]  # Django ships no types
        def get(self, request: Any) -> Any: ...

        @priority("sheddable")
        def put(self, request: Any) -> Any: ...

    class Items(ViewSet):  # type: ignore[misc]  # Django ships no types
        @priority("sheddable")
        def list(self, request: Any) -> Any: ...

        def create(self, request: Any) -> Any: ...

        @priority("critical")
        @action(detail=True, methods=["post"])
        def pay(self, request: Any, pk: Any = None) -> Any: ...

        @action(detail=False)
        @exempt
        def ping(self, request: Any) -> Any: ...

    def small(request: Any) -> Any:
        return Response()

    router = SimpleRouter()
    router.register("items", Items, basename="item")
    below, above = (
        api_view(["GET"])(priority("critical")(small)),
        api_view(["GET"])(lambda request: Response()),
    )
    routes = urlconf(
        path("api/", Api.as_view()),
        path("v1/", include(router.urls)),
        path("below/", below),
        path("above/", priority("critical")(above)),
    )
    assert (priority_of(routes, "/api/"), priority_of(routes, "/api/", "PUT")) == ("critical", "sheddable")
    assert label(routes, "/v1/items/") == "/v1/items/"
    assert label(routes, "/v1/items/7/pay/") == "/v1/items/<pk>/pay/"
    assert (priority_of(routes, "/v1/items/"), priority_of(routes, "/v1/items/", "HEAD")) == (
        "sheddable",
    ) * 2
    assert priority_of(routes, "/v1/items/", "POST") is None
    assert priority_of(routes, "/v1/items/7/pay/", "POST") == "critical"
    assert priority_of(routes, "/v1/items/ping/") == "exempt"
    assert priority_of(routes, "/below/") == "critical"
    assert priority_of(routes, "/above/") == "critical"
    assert name_of(above).endswith("<lambda>") or "WrappedAPIView" in name_of(above)


def test_includes_mark_all_below_and_the_inner_one_goes_first(urlconf: Urlconf) -> None:
    routes = urlconf(
        marked(
            path(
                "a/",
                include([
                    path("x", view()),
                    path("y", priority("critical")(view())),
                    marked(path("b/", include([path("z", view())])), exempt),
                    *marked([path("m", view()), path("n", view())], deadline(maximum=3), priority="normal"),
                ]),
            ),
            priority("sheddable", cost=2),
            deadline(maximum=1),
        ),
        path("x", view()),
    )  # fmt: skip
    assert [priority_of(routes, f"/a/{each}") for each in ("x", "y", "b/z", "m", "n")] == [
        "sheddable", "critical", "exempt", "normal", "normal",
    ]  # fmt: skip
    assert priority_of(routes, "/x") is None
    mark = by_template(routes)["/a/m"].mark
    assert mark is not None
    assert mark.cost == 2
    assert mark.deadline is not None
    assert mark.deadline.maximum == 3
    with pytest.raises(ValueError, match="priority"):
        marked(path("x", view()), priority="Not A Name")


def test_b82_a_mark_that_nothing_leads_to_is_named_at_start(urlconf: Urlconf, entry_points: object) -> None:
    def hiding(function: Any) -> Any:
        def view(request: Any) -> Any:
            return function(request)

        return view

    hidden = priority("critical")(view())
    urlconf(path("x/", hiding(hidden)))
    with pytest.warns(ResilienceWarning, match=r"the mark on .*view.* has no effect"):
        Protection(None, {}).start([WSGIHandler()])


def test_marks_made_for_each_request_are_not_kept() -> None:
    """`method_decorator` decorates anew for each call."""
    from resilient_mw.core import marks

    class Marked(View):  # type: ignore[misc]  # Django ships no types
        @method_decorator(priority("critical"))
        def get(self, request: Any) -> Any:
            return HttpResponse("")

    instance = Marked()
    for _ in range(1000):
        instance.get(None)
    assert len(marks._marked) < 300


# -- applications ------------------------------------------------------------------------------------------------------


def test_handlers_are_known_also_inside_what_wraps_them() -> None:
    wsgi, asgi = WSGIHandler(), ASGIHandler()

    class Around:
        def __init__(self, **inside: Any) -> None:
            vars(self).update(inside)

    for app in (
        wsgi,
        asgi,
        Around(application=wsgi),
        Around(application_mapping={"http": Around(application=asgi)}),
    ):
        assert route_source.resolver(app) is not None
    endless = Around()
    endless.application = endless  # type: ignore[attr-defined]
    for other in (endless, Around(), None, len, Around(application_mapping=3)):
        assert route_source.resolver(other) is None


def test_the_cost_does_not_grow_with_the_number_of_routes(
    urlconf: Urlconf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B83: only those patterns are tried that may match."""
    from resilient_mw_integrations.django.entries import Leaf

    patterns = [path(f"v1/things{number}/<int:pk>/", view()) for number in range(500)]
    patterns += [re_path(rf"^v2/things{number}/(?P<pk>\d+)/$", view()) for number in range(500)]
    routes = urlconf(*patterns)
    tried: list[Leaf] = []
    matches = Leaf.matches

    def counted(leaf: Leaf, where: str) -> bool:
        tried.append(leaf)
        return matches(leaf, where)

    monkeypatch.setattr(Leaf, "matches", counted)
    assert label(routes, "/v1/things499/7/") == "/v1/things499/<int:pk>/"
    assert label(routes, "/v2/things499/7/") == "/v2/things499/<pk>/"
    assert label(routes, "/v3/x") is None
    assert len(tried) == 2

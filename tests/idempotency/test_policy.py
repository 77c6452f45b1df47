"""The policy says no to what makes no sense, and finds what holds for a route."""

from __future__ import annotations

from typing import Any, ClassVar

import pytest

from resilient_mw.core.idempotent import IdempotencyRule
from resilient_mw.core.marks import mark_of, priority
from resilient_mw.idempotency import IdempotencyPolicy, IdempotencyRoute, authenticated, idempotent_route
from resilient_mw.idempotency.treatment import Treatments
from tests.idempotency.scene import policy


async def an_async_function(_: Any) -> str:
    return ""


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"single_tenant": False}, r"caller=None with single_tenant=False"),
    ({"caller": "X-User"}, r"caller='X-User' with single_tenant=True"),
    ({"single_tenant": False, "caller": "not a field"}, r"caller='not a field'"),
    ({"single_tenant": False, "caller": 7}, r"caller=7 .* function"),
    ({"single_tenant": False, "caller": an_async_function}, r"caller=.* not an async one"),
    ({"single_tenant": 1}, r"single_tenant=1 .* True or False"),
    ({"strict": "yes"}, r"strict='yes'"),
    ({"show_caller": None}, r"show_caller=None"),
    ({"use": "always"}, r"use='always' .* 'required', 'optional', 'off'"),
    ({"use": None}, r"use=None"),
    ({"wait": "forever"}, r"wait='forever'"),
    ({"on_unknown": "ask"}, r"on_unknown='ask' .* or a function"),
    ({"store_down": "half"}, r"store_down='half'"),
    ({"methods": "POST"}, r"methods='POST'"),
    ({"methods": ["GET"]}, r"methods='GET'"),
    ({"methods": [7]}, r"methods=7"),
    ({"routes": ["/x"]}, r"routes='/x'"),
    ({"header": "a b"}, r"header='a b'"),
    ({"max_wait": -1}, r"max_wait=-1 .* from 0 to 86400"),
    ({"max_waiting": -1}, r"max_waiting=-1"),
    ({"fingerprint_headers": "X-A"}, r"fingerprint_headers='X-A'"),
    ({"drop_headers": ["a b"]}, r"drop_headers='a b'"),
    ({"canonical_json": -1}, r"canonical_json=-1"),
    ({"buffer_request": -1}, r"buffer_request=-1"),
    ({"lease": 0}, r"lease=0 .* from 0.1"),
    ({"heartbeat": 16.0}, r"heartbeat=16.0 .* to 15"),
    ({"keep": 0}, r"keep=0"),
    ({"keep_statuses": 200}, r"keep_statuses=200"),
    ({"keep_statuses": [100]}, r"keep_statuses=100 .* from 200 to 599"),
    ({"max_answer": 1.5}, r"max_answer=1.5"),
    ({"max_records": 0}, r"max_records=0"),
    ({"store_timeout": 0}, r"store_timeout=0"),
    ({"listeners": [7]}, r"listeners=7"),
    ({"name": "two words"}, r"name='two words'"),
]


@pytest.mark.parametrize(("facts", "text"), WRONG, ids=lambda each: str(each)[:40])
def test_a_wrong_field_is_named_with_its_value(facts: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=r"IdempotencyPolicy\." + text):
        policy(**facts)


def test_every_field_of_the_policy_is_checked() -> None:
    assert {name for facts, _ in WRONG for name in facts} == set(IdempotencyPolicy.__slots__)


@pytest.mark.parametrize(
    ("facts", "text"),
    [
        ({"use": "no"}, r"IdempotencyRule.use='no'"),
        ({"lease": "1"}, r"IdempotencyRule.lease='1'"),
        ({"keep_statuses": "200"}, r"IdempotencyRule.keep_statuses='200'"),
        ({"on_unknown": 3}, r"IdempotencyRule.on_unknown=3"),
    ],
)
def test_a_wrong_rule(facts: dict[str, Any], text: str) -> None:
    with pytest.raises(ValueError, match=text):
        IdempotencyRule(**facts)


def test_a_wrong_route() -> None:
    for path, rule, methods, text in (
        ("x", IdempotencyRule(), (), "path='x'"),
        ("/x", "required", (), "rule='required'"),
        ("/x", IdempotencyRule(), ["GET"], "methods='GET'"),
    ):
        with pytest.raises(ValueError, match=rf"IdempotencyRoute\.{text}"):
            IdempotencyRoute(path, rule, methods=methods)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="required=True, off=True"):
        idempotent_route(required=True, off=True)


class TestTreatment:
    def test_a_route_that_says_nothing(self) -> None:
        of = Treatments(policy()).of
        for method in ("POST", "PATCH"):
            treatment = of(method, "/anything")
            assert treatment is not None
            assert (treatment.required, treatment.wait, treatment.on_unknown) == (False, "join", "refuse")
            assert (treatment.lease, treatment.heartbeat, treatment.keep) == (30.0, 10.0, 86_400.0)
            assert treatment.store_down == "closed"
        for method in ("GET", "HEAD", "OPTIONS", "PUT", "DELETE", "QUERY"):
            assert of(method, "/anything") is None

    def test_off_by_default_and_on_by_route(self) -> None:
        """The first route that matches decides; one with methods leaves the others alone."""
        rules = policy(
            use="off",
            routes=[
                IdempotencyRoute("/a/{id}", IdempotencyRule(use="required"), methods=["PUT"]),
                IdempotencyRoute("/a/*", IdempotencyRule(use="optional", wait="conflict")),
            ],
        )
        of = Treatments(rules).of
        put, delete = of("PUT", "/a/7"), of("DELETE", "/a/7")
        assert put is not None
        assert put.required
        assert delete is not None
        assert (delete.required, delete.wait) == (False, "conflict")
        assert of("GET", "/a/7") is None
        assert of("POST", "/b") is None

    def test_a_rule_without_a_use_changes_the_rest_only(self) -> None:
        rules = policy(routes=[IdempotencyRoute("/a", IdempotencyRule(lease=3.0))], heartbeat=2.0)
        of = Treatments(rules).of
        post = of("POST", "/a")
        assert post is not None
        assert (post.lease, post.heartbeat, post.required) == (3.0, 1.5, False)
        assert of("PUT", "/a") is None

    def test_a_mark(self) -> None:
        @idempotent_route(required=True, lease=5.0)
        def endpoint() -> None: ...

        mark = mark_of(endpoint)
        assert mark is not None
        rules = policy(routes=[IdempotencyRoute("/a", IdempotencyRule(lease=3.0))])
        of = Treatments(rules).of
        marked, both = of("PUT", "/b", mark.idempotency), of("PUT", "/a", mark.idempotency)
        assert marked is not None
        assert both is not None
        assert (marked.required, marked.lease) == (True, 5.0)
        assert (both.required, both.lease) == (True, 3.0), "the policy's own rule goes before the mark"
        assert of("GET", "/b", mark.idempotency) is None

    def test_off_by_mark(self) -> None:
        mark = mark_of(idempotent_route(off=True)(lambda: None))
        assert mark is not None
        assert Treatments(policy(use="required")).of("POST", "/b", mark.idempotency) is None

    def test_every_field_of_a_rule_arrives(self) -> None:
        def status(_: Any) -> Any: ...

        rule = IdempotencyRule(
            use="required",
            wait="conflict",
            on_unknown=status,
            keep_statuses={200, 500},
            max_answer=7,
            lease=2.0,
            keep=9.0,
            canonical_json=5,
            store_down="open",
            in_transaction=True,
        )
        treatment = Treatments(policy()).of("POST", "/", rule)
        assert treatment is not None
        for name in IdempotencyRule.__slots__:
            if name != "use":
                assert getattr(treatment, name) == getattr(rule, name), name

    def test_a_status_function_that_cannot_be_hashed(self) -> None:
        class Status:
            __hash__ = None  # type: ignore[assignment]

            def __call__(self, _: Any) -> Any: ...

        status = Status()
        treatment = Treatments(policy(on_unknown=status)).of("POST", "/")
        marked = Treatments(policy()).of("POST", "/", IdempotencyRule(use="required", on_unknown=status))
        assert treatment is not None
        assert marked is not None
        assert treatment.on_unknown is marked.on_unknown is status


class TestMark:
    def test_the_order_of_decorators_does_not_matter(self) -> None:
        for decorators in (
            (idempotent_route(required=True), priority("critical")),
            (priority("critical"), idempotent_route(required=True)),
        ):

            def endpoint() -> None: ...

            for decorator in decorators:
                endpoint = decorator(endpoint)
            mark = mark_of(endpoint)
            assert mark is not None
            assert mark.priority == "critical"
            assert mark.idempotency is not None
            assert mark.idempotency.use == "required"

    def test_an_endpoint_goes_before_its_router(self) -> None:
        router = mark_of(idempotent_route(required=True, lease=5.0)(lambda: None))
        endpoint = mark_of(idempotent_route(keep=7.0)(lambda: None))
        assert router is not None
        assert endpoint is not None
        rule = endpoint.over(router).idempotency
        assert rule is not None
        assert (rule.use, rule.lease, rule.keep) == ("optional", 5.0, 7.0)


class Head:
    """The head of a request, as both shells show it."""

    method, path, peer = "POST", "/", None
    lines: ClassVar[dict[str, list[str]]] = {"x-user": ["alice"], "x-two": ["a", "b"]}

    def __init__(self, **scope: Any) -> None:
        self.scope = scope

    def values(self, name: str) -> list[str]:
        return self.lines.get(name, [])


class User:
    def __init__(self, identity: object, *, known: bool = True, display_name: str = "") -> None:
        self.is_authenticated = known
        self.display_name = display_name
        self._identity = identity

    @property
    def identity(self) -> object:
        if self._identity is NotImplementedError:
            raise NotImplementedError
        return self._identity


class TestCaller:
    def test_by_a_header(self) -> None:
        def by(field: str) -> str | None:
            return policy(single_tenant=False, caller=field).caller_of(Head())

        assert by("X-User") == "alice"
        assert by("X-Two") == "a\nb"
        assert by("X-None") is None

    def test_by_a_function(self) -> None:
        rules = policy(single_tenant=False, caller=lambda head: head.scope.get("name"))
        assert rules.caller_of(Head(name="bob")) == "bob"
        assert rules.caller_of(Head(name="")) is None
        assert rules.caller_of(Head()) is None

    def test_all_are_one(self) -> None:
        assert policy().caller_of(Head()) == ""

    def test_by_authentication(self) -> None:
        assert authenticated(Head(user=User("alice"))) == "alice"
        assert authenticated(Head(user=User(7))) == "7"
        assert authenticated(Head(user=User(NotImplementedError, display_name="Alice"))) == "Alice"
        assert authenticated(Head(user=User("alice", known=False))) is None
        assert authenticated(Head(REMOTE_USER="carol")) == "carol"
        assert authenticated(Head()) is None

"""Idempotency keys in `resilient-mw explain`: how each route is treated, and what is likely to be wrong."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import pytest

from tests.cli.conftest import FASTAPI, FLASK, Explain, Said

START = (
    FASTAPI
    + """
from resilient_mw.asgi.idempotency import IdempotencyMiddleware
from resilient_mw.idempotency import *
from resilient_mw.stores.memory import MemoryIdempotencyStore
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
def look_up(about): return "unknown"
class Asked:
    __hash__ = None
    def __call__(self, about): return "unknown"
"""
)
ROUTES = """
@app.post("/payments")
@idempotent_route(required=True, on_unknown=look_up, canonical_json=4096)
async def pay(): ...
@app.api_route("/refunds/{id}", methods=["PUT", "POST", "GET"])
async def refund(id: int): ...
@app.delete("/x")
async def x(): ...
@app.get("/read")
async def read(): ...
"""
FILE = 'SQLiteIdempotencyStore("keys.db")'
MEMORY = "MemoryIdempotencyStore()"


def shop(
    policy: str = "", store: str = FILE, admission: str = "app.add_middleware(ResilienceMiddleware)"
) -> str:
    caller = "" if "single_tenant" in policy else "caller='X-User', "
    keys = f"app.add_middleware(IdempotencyMiddleware, policy=IdempotencyPolicy({caller}{policy}), store={store})"
    return f"{START}{keys}\n{admission}\n{ROUTES}"


def keys(said: Said) -> dict[str, Any]:
    (found,) = said.json()["keys"]
    assert isinstance(found, dict)
    return found


def uses(said: Said) -> dict[tuple[str, str], tuple[str, str]]:
    return {
        (" ".join(row["methods"]), row["template"]): (row["use"], row["source"])
        for row in keys(said)["routes"]
    }


def test_each_route_says_how_it_treats_keys(explain: Explain) -> None:
    rule = "IdempotencyRoute('/refunds/{id}', IdempotencyRule(use='required', lease=7), methods=['PUT'])"
    said = explain(shop(f"routes=[{rule}]"), "--json")
    assert uses(said) == {
        ("POST", "/payments"): ("required", "mark"),
        ("POST", "/refunds/{id}"): ("optional", "default"),
        ("PUT", "/refunds/{id}"): ("required", "rule"),
        ("DELETE", "/x"): ("off", "default"),
        ("DELETE PUT", "unmatched"): ("off", "default"),
        ("PATCH POST", "unmatched"): ("optional", "default"),
    }
    rows = {(row["methods"][0], row["template"]): row for row in keys(said)["routes"]}
    pay, put = rows["POST", "/payments"], rows["PUT", "/refunds/{id}"]
    assert (pay["on_unknown"], pay["canonical_json"], pay["budget"]) == ("look_up", 4096, 10.0)
    assert (put["on_unknown"], put["lease"], put["keep"]) == ("refuse", 7, 86_400)
    assert rows["DELETE", "/x"]["lease"] is None
    assert (keys(said)["caller"], keys(said)["store"]) == ("header X-User", "SQLiteIdempotencyStore")
    assert keys(said)["shared"] == "machine"
    assert said.codes() == []


def test_the_text_says_the_same(explain: Explain) -> None:
    lines = [line.split() for line in explain(shop()).out.splitlines()]
    assert ["POST", "/payments", "required", "join", "look_up"] in [line[:5] for line in lines]
    assert ["4,096", "B", "closed", "mark"] in [line[-4:] for line in lines]
    assert ["DELETE", "/x", "off", *"-------", "default"] in lines
    assert ["key", "in", "Idempotency-Key,", "of", "header", "X-User"] in lines
    assert [
        "store",
        "SQLiteIdempotencyStore",
        "(one",
        "for",
        "each",
        "machine),",
        "asked",
        "for",
        "2",
        "s",
        "at",
        "most",
    ] in lines


def test_keys_without_admission_are_explained(explain: Explain) -> None:
    said = explain(shop("single_tenant=True", admission=""), "--json")
    assert said.status == 0
    assert said.json()["applications"] == []
    assert (keys(said)["caller"], uses(said)["POST", "/payments"]) == (None, ("required", "mark"))
    assert [row["budget"] for row in keys(said)["routes"]] == [None] * 6
    assert "of one tenant" in explain(shop("single_tenant=True", admission="")).out


def test_without_a_route_source_the_rules_are_shown(explain: Explain) -> None:
    source = (
        f"{START}async def app(scope, receive, send): ...\n"
        "policy = IdempotencyPolicy(single_tenant=True, routes=[IdempotencyRoute('/pay', IdempotencyRule(on_unknown=Asked()))])\n"
        f"app = IdempotencyMiddleware(app, policy, store={FILE})"
    )
    said = explain(source, "--json")
    assert keys(said)["routes_known"] is False
    assert uses(said)["PATCH POST", "/pay"] == ("optional", "rule")
    assert "no route source knows the application" in explain(source).out


WSGI = (
    FLASK
    + """
from resilient_mw.wsgi.idempotency import IdempotencyMiddleware
from resilient_mw.idempotency import *
from resilient_mw.stores.sqlite import SQLiteIdempotencyStore
@app.post("/payments")
@idempotent_route(required=True)
def pay(): ...
policy = IdempotencyPolicy(single_tenant=True, {})
app.wsgi_app = IdempotencyMiddleware(app.wsgi_app, policy, store=SQLiteIdempotencyStore("keys.db"))
app.wsgi_app = ResilienceMiddleware(app.wsgi_app)
"""
)


def test_wsgi_is_explained(explain: Explain) -> None:
    said = explain(WSGI.replace("{}", ""), "--json")
    assert uses(said)["POST", "/payments"] == ("required", "mark")
    assert (keys(said)["protocol"], keys(said)["store"]) == ("wsgi", "SQLiteIdempotencyStore")
    assert said.codes() == []


AROUND = "app = IdempotencyMiddleware(app, IdempotencyPolicy(single_tenant=True), store=" + FILE + ")"

CASES: dict[str, list[tuple[str, Sequence[str], str | None]]] = {
    "keys_in_each_process": [
        (shop(store=MEMORY), ("--workers", "2"), "in memory, and there are 2 processes: .* PostgreSQL, Redis, or"),
        (shop(store=MEMORY), ("--machines", "3"), "there are 3 machines"),
        (shop(store=MEMORY), (), None),
        (shop(store=FILE), ("--workers", "2"), None),
    ],
    "keys_on_each_machine": [
        (shop(store=FILE), ("--workers", "4", "--machines", "2"), "a file of one machine, and there are 2: .* network"),
        (shop(store=FILE), ("--workers", "4"), None),
    ],
    "keys_around_admission": [
        (START + "app.add_middleware(ResilienceMiddleware)\n" + AROUND, (), "Put it inside"),
        (shop(), (), None),
        (shop(admission=""), (), None),
    ],
    "repeats_take_threads": [
        (WSGI.replace("{}", "max_waiting=50"), ("--threads", "50"), "max_waiting=50 repeats .* --threads 50: repeats alone"),
        (WSGI.replace("{}", "max_waiting=49"), ("--threads", "50"), None),
        (WSGI.replace("{}", "max_waiting=50, wait='conflict'"), ("--threads", "50"), None),
        (WSGI.replace("{}", "max_waiting=50"), (), None),
        (shop("max_waiting=50"), ("--threads", "50"), None),
    ],
    "keys_rule_without_route": [
        (shop("routes=[IdempotencyRoute('/refund', IdempotencyRule(use='off'))]"), (), r"'/refund'\) matches no route"),
        (shop("routes=[IdempotencyRoute('/refunds/*', IdempotencyRule(use='off'))]"), (), None),
    ],
    "lease_below_deadline": [
        (shop("lease=5, on_unknown='retry'"), (), r"may run for 10 s.* lease=5 .*on_unknown \(retry\).* above 10 s"),
        (shop("lease=10, on_unknown='retry'"), (), None),
        (shop("lease=5, routes=[IdempotencyRoute('/payments', IdempotencyRule(on_unknown='refuse'))]"), (), None),
    ],
    "keep_too_short": [
        (shop("keep=600"), (), r"after keep=600: .* not below 3600"),
        (shop("keep=3600"), (), None),
    ],
    "required_key_unprotected": [
        (shop("store_down='open'"), (), "POST '/payments' needs a key, .* store_down='closed'"),
        (shop("store_down='open', routes=[IdempotencyRoute('/*', IdempotencyRule(use='optional'))]"), (), None),
    ],
}  # fmt: skip


@pytest.mark.parametrize(
    ("code", "number"), [(code, number) for code, cases in CASES.items() for number in range(len(cases))]
)
def test_each_warning(code: str, number: int, explain: Explain) -> None:
    source, arguments, says = CASES[code][number]
    said = explain("import warnings\nwarnings.simplefilter('ignore')\n" + source, "--json", *arguments)
    assert said.status == 0, said.err
    texts = [each["text"] for each in said.json()["warnings"] if each["code"] == code]
    if says is None:
        assert not texts
    else:
        assert texts
        assert re.search(says, "\n".join(texts)), texts

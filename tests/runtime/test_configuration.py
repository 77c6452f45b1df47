"""Where the values of a policy come from, and which goes before which."""

from __future__ import annotations

import gc
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from resilient_mw import ResilienceWarning, ServerPolicy
from resilient_mw.runtime import switch
from resilient_mw.runtime.configuration import load_policy, read_switch, sources_of
from resilient_mw.runtime.protection import Protection
from resilient_mw.testing import ScriptedWSGI
from resilient_mw.wsgi import ResilienceMiddleware


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "resilient.toml"
    made.write_text("limit = 30\nqueue = 7\n[[routes]]\npath = '/reports'\ncost = 2\n", encoding="utf-8")
    return made


@pytest.fixture
def _switch_back() -> Iterator[None]:
    yield
    if switch._for_good:
        switch._for_good = False
        switch.turn_on()


def some(policy: ServerPolicy, *names: str) -> dict[str, str]:
    sources = sources_of(policy)
    return {name: sources[name] for name in names}


# -- the order ---------------------------------------------------------------------------------------------------------


def test_the_environment_goes_before_the_file_and_the_file_before_what_the_code_proposes(file: Path) -> None:
    policy = load_policy(
        file, limit=10, max_wait=3.0, name="shop", queue=1,
        environ={"RESILIENT_MW_LIMIT": "40", "RESILIENT_MW_DEBUG": "yes", "HOME": "/"},
    )  # fmt: skip
    assert (policy.limit, policy.queue, policy.max_wait, policy.debug) == (40, 7, 3.0, True)
    assert some(policy, "limit", "queue", "max_wait", "debug", "routes", "ramp") == {
        "limit": "RESILIENT_MW_LIMIT",
        "queue": "resilient.toml",
        "max_wait": "code",
        "debug": "RESILIENT_MW_DEBUG",
        "routes": "resilient.toml",
        "ramp": "default",
    }


def test_a_policy_is_a_proposal_and_is_not_changed_itself(file: Path) -> None:
    proposed = ServerPolicy(limit=10, ramp=5.0)
    policy = load_policy(file, policy=proposed, environ={})
    assert (policy.limit, policy.ramp, proposed.limit) == (30, 5.0, 10)
    assert some(policy, "limit", "ramp") == {"limit": "resilient.toml", "ramp": "code"}


def test_a_keyword_of_the_middleware_stands_and_says_so(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESILIENT_MW_LIMIT", "40")
    monkeypatch.setenv("RESILIENT_MW_QUEUE", "9")
    with pytest.warns(ResilienceWarning, match=r"^RESILIENT_MW_LIMIT has no effect on") as told:
        protection = Protection(load_policy(file), {"limit": 5})
    assert len(told) == 1
    assert (protection.policy.limit, protection.policy.queue) == (5, 9)
    assert some(protection.policy, "limit", "queue", "routes") == {
        "limit": "keyword of the middleware",
        "queue": "RESILIENT_MW_QUEUE",
        "routes": "resilient.toml",
    }


def test_a_policy_that_the_code_makes_stands_and_the_variable_without_effect_is_named(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("RESILIENT_MW_LIMIT", "40")
    monkeypatch.setenv("RESILIENT_MW_CONFIG", "gone.toml")
    told = r"^RESILIENT_MW_LIMIT, RESILIENT_MW_CONFIG have no effect on the policy 'shop'"
    with pytest.warns(ResilienceWarning, match=told):
        protection = Protection(ServerPolicy(name="shop", limit=4), {})
    assert protection.policy.limit == 4


def test_a_middleware_without_a_policy_loads_one(monkeypatch: pytest.MonkeyPatch, file: Path) -> None:
    monkeypatch.setenv("RESILIENT_MW_LIMIT", "40")
    monkeypatch.setenv("RESILIENT_MW_CONFIG", str(file))
    policy = Protection(None, {}).policy
    assert (policy.limit, policy.queue) == (40, 7)
    monkeypatch.setenv("RESILIENT_MW_LIMIT", "none")
    with pytest.raises(ValueError, match=r"^RESILIENT_MW_LIMIT: limit='none' is not allowed"):
        Protection(None, {})


def test_nothing_is_read_where_nothing_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.resilient_mw]\nlimit = 1\n", encoding="utf-8")
    (tmp_path / "resilient.toml").write_text("limit = 1\n", encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    policy = load_policy(environ={})
    assert policy.limit == "auto"
    assert set(sources_of(policy).values()) == {"default"}


def test_a_loaded_policy_can_be_put_in_force_while_requests_run(file: Path) -> None:
    policy = Protection(load_policy(file, environ={}), {}).policy
    file.write_text("limit = 3\n", encoding="utf-8")
    assert policy.reload(load_policy(file, environ={})).limit == 3
    assert policy.snapshot().limit == 3


# -- files -------------------------------------------------------------------------------------------------------------


def test_the_environment_names_a_file_in_place_of_the_one_in_the_code(tmp_path: Path, file: Path) -> None:
    other = tmp_path / "other.toml"
    other.write_text("limit = 2\n", encoding="utf-8")
    policy = load_policy(file, environ={"RESILIENT_MW_CONFIG": str(other)})
    assert (policy.limit, policy.queue) == (2, None)
    assert some(policy, "limit") == {"limit": "other.toml"}


def test_a_table_of_pyproject(tmp_path: Path) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text("[project]\nname = 'x'\n[tool.resilient_mw]\nlimit = 6\n", encoding="utf-8")
    policy = load_policy(path, environ={})
    assert policy.limit == 6
    assert some(policy, "limit") == {"limit": "pyproject.toml [tool.resilient_mw]"}


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("gone.toml", None, r"cannot be read: .*No such file"),
        ("a.toml", "limit = ", r"cannot be read: "),
        ("a.toml", b"\xff", r"cannot be read: "),
        ("a.toml", "limit = 0", r"^a\.toml: limit=0 is not allowed"),
        ("pyproject.toml", "[tool.resilient-mw]", r"'resilient_mw' is no table of \[tool\]: did you mean 'resilient-mw'\?"),
        ("pyproject.toml", "[project]", r"'resilient_mw' is no table of \[tool\]"),
        ("pyproject.toml", "[tool]\nresilient_mw = 5", r"\[tool.resilient_mw\] is not allowed: it must be a table"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("named_by", ["file", "RESILIENT_MW_CONFIG"])
def test_a_file_that_says_nothing_usable_is_an_error(
    tmp_path: Path, name: str, text: Any, message: str, named_by: str
) -> None:
    path = tmp_path / name
    if text is not None:
        path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ValueError, match=message) as raised:
        load_policy(
            **({"file": path, "environ": {}} if named_by == "file" else {"environ": {named_by: str(path)}})
        )
    assert named_by in str(raised.value) or str(raised.value).startswith(name)


# -- variables ---------------------------------------------------------------------------------------------------------


def test_a_variable_that_is_no_setting_is_an_error() -> None:
    with pytest.raises(
        ValueError, match=r"'RESILIENT_MW_LIMTI' is no setting: did you mean 'RESILIENT_MW_LIMIT'\?"
    ):
        load_policy(environ={"RESILIENT_MW_LIMTI": "3"})


def test_what_an_orchestrator_adds_for_services_is_not_meant_for_us() -> None:
    load_policy(
        environ={
            "RESILIENT_MW_SERVICE_HOST": "10.0.0.1",
            "RESILIENT_MW_SERVICE_PORT": "80",
            "RESILIENT_MW_SERVICE_PORT_HTTP": "80",
            "RESILIENT_MW_PORT": "tcp://10.0.0.1:80",
            "RESILIENT_MW_PORT_80_TCP": "tcp://10.0.0.1:80",
            "RESILIENT_MW_DEMO_PORT_80_TCP_ADDR": "10.0.0.1",
        }
    )
    with pytest.raises(ValueError, match="RESILIENT_MW_SPORT"):
        load_policy(environ={"RESILIENT_MW_SPORT": "1"})


def test_an_empty_variable_is_none_at_all() -> None:
    empty = {
        "RESILIENT_MW_LIMIT": "",
        "RESILIENT_MW_QUEUE": " ",
        "RESILIENT_MW_CONFIG": "",
        "RESILIENT_MW_DISABLED": "",
    }
    assert set(sources_of(load_policy(environ=empty)).values()) == {"default"}
    read_switch(empty)
    assert not switch.DISABLED


def test_sources_are_forgotten_with_their_policy() -> None:
    from resilient_mw.runtime import configuration

    policy = load_policy(limit=3, environ={})
    gc.collect()
    before = len(configuration._sources)
    del policy
    gc.collect()
    assert len(configuration._sources) == before - 1


# -- the kill switch ---------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("_switch_back")
def test_the_kill_switch_lets_requests_pass_and_is_logged_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def application(environ: Any, start_response: Any) -> list[bytes]:
        start_response("200 OK", [("Content-Type", "text/plain")])
        return [b"served"]

    policy = ServerPolicy(limit=1, queue=0)
    with caplog.at_level(logging.WARNING, "resilient_mw"):
        monkeypatch.setenv("RESILIENT_MW_DISABLED", "1")
        app = ResilienceMiddleware(application, policy)
        ResilienceMiddleware(application)
    assert caplog.messages == [
        "RESILIENT_MW_DISABLED=1: every request passes unguarded, without limit and deadline"
    ]
    monkeypatch.delenv("RESILIENT_MW_DISABLED")  # read at start, not for each request
    answer = ScriptedWSGI(app, headers=[("X-Request-Timeout-Ms", "0")]).call()
    assert answer.read() == [b"served"]
    answer.close()
    assert sum(route.arrived for route in policy.snapshot().routes) == 0


@pytest.mark.usefixtures("_switch_back")
def test_a_test_that_turns_the_middlewares_on_again_does_not_undo_the_kill_switch() -> None:
    read_switch({"RESILIENT_MW_DISABLED": "true"})
    switch.turn_off()
    switch.turn_on()
    assert switch.DISABLED


def test_a_kill_switch_that_says_neither_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RESILIENT_MW_DISABLED", "perhaps")
    with pytest.raises(
        ValueError, match="^RESILIENT_MW_DISABLED='perhaps' is not allowed: it must be 1 or 0"
    ):
        Protection(None, {})
    monkeypatch.setenv("RESILIENT_MW_DISABLED", "0")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        Protection(None, {})
    assert not switch.DISABLED

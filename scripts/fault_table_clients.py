"""Faults of the clients beside httpx: requests, urllib3 and aiohttp."""

from __future__ import annotations

from fault_table import Fault

FOLDER = "integrations/resilient_mw_integrations/"
WIRE = FOLDER + "_urllib3_wire.py"
POOLS = FOLDER + "_urllib3_calls.py"
BODIES = FOLDER + "_urllib3_bodies.py"
ADAPTER = FOLDER + "requests.py"
SENDING = FOLDER + "_aiohttp_calls.py"
ALARM = FOLDER + "_aiohttp_bodies.py"
DEADLINES = "tests/integrations/test_clients_deadlines.py::test_"
CALLS = "tests/integrations/test_clients_calls.py::test_"
URLLIB3 = "tests/integrations/test_urllib3.py::test_"
AIOHTTP = "tests/integrations/test_aiohttp.py::test_"

FAULTS = (
    Fault(
        "aiohttp_closed_before_its_reader_knows",
        ALARM,
        "asyncio.get_running_loop().call_soon(_close, answer, error)",
        "answer.close()",
        (AIOHTTP + "a_reader_that_is_woken_as_the_time_ends_is_told_so",),
    ),
    Fault(
        "urllib3_read_not_bounded",
        WIRE,
        "        self._sock.settimeout(left)\n        scope.count(0)",
        "        scope.count(0)",
        (DEADLINES + "a_body_that_stalls_after_a_late_head",),
    ),
    Fault(
        "urllib3_drip_not_seen",
        WIRE,
        "left = scope.left(self._timeout)",
        "left = self._timeout",
        (DEADLINES + "the_deadline_holds[drips-head-urllib3]",),
    ),
    Fault(
        "urllib3_write_not_bounded",
        WIRE,
        "self.sock.settimeout(left)",
        "pass",
        (DEADLINES + "a_server_may_take_its_time_to_read",),
    ),
    Fault(
        "urllib3_slow_writes_not_seen",
        WIRE,
        "left = scope.left(base)",
        "left = base",
        (DEADLINES + "the_deadline_holds[reads-slowly-urllib3]",),
    ),
    Fault(
        "urllib3_tls_not_bounded",
        WIRE,
        "sock.settimeout(self._left_to_connect(scope))\n        return sock",
        "return sock",
        (DEADLINES + "a_tls_handshake_that_never_ends",),
    ),
    Fault(
        "urllib3_first_address_takes_all",
        WIRE,
        "left / (len(addresses) - index)",
        "left",
        (DEADLINES + "a_silent_address_leaves_time_for_the_next_one",),
    ),
    Fault(
        "urllib3_head_told_before_connecting",
        WIRE,
        "                self.connect()\n",
        "                pass\n",
        (CALLS + "the_deadline_is_told_as_it_is_after_connecting[requests]",),
    ),
    Fault(
        "urllib3_pool_waits_for_ever",
        POOLS,
        "super()._get_conn(left if left is None else max(0.0, left))",
        "super()._get_conn(None)",
        (DEADLINES + "waiting_for_a_connection_of_the_pool",),
    ),
    Fault(
        "urllib3_own_retries_on",
        POOLS,
        "retries=False,",
        "retries=self._pool.retries or 3,",
        (
            URLLIB3 + "the_last_error_looks_as_without_us",
            CALLS + "a_connection_that_went_stale_is_no_failure_of_the_dependency[urllib3]",
        ),
    ),
    Fault(
        "urllib3_redirects_forgotten",
        POOLS,
        "            raw.retries = retries\n",
        "",
        (CALLS + "b62_each_hop_of_a_redirect_is_looked_at_anew[urllib3]",),
    ),
    Fault(
        "urllib3_silent_proxy_is_no_timeout",
        POOLS,
        "if isinstance(error.original_error, LATE):",
        "if False:",
        (URLLIB3 + "a_proxy_that_never_accepts_ends_with_the_callers_budget",),
    ),
    Fault(
        "urllib3_discarded_place_lost",
        BODIES,
        "    HTTPResponse.release_conn(raw)\n",
        "",
        (CALLS + "b50_a_discarded_body_that_does_not_end_takes_no_place_in_the_pool",),
    ),
    Fault(
        "urllib3_closed_place_lost",
        BODIES,
        "        super().close()\n        super().release_conn()\n",
        "        super().close()\n",
        (
            "tests/integrations/test_clients_servers.py::test_streams_that_are_read_and_streams_that_are_left[urllib3]",
        ),
    ),
    Fault(
        "urllib3_bits_end_nothing",
        BODIES,
        "        if raw.closed:\n            self.ended()\n",
        "",
        (URLLIB3 + "a_body_that_is_read_in_the_end_or_at_once",),
    ),
    Fault(
        "urllib3_forgotten_slot",
        BODIES,
        "                self._connection = None\n            delivery.forgotten()\n",
        "                self._connection = None\n",
        (CALLS + "a_response_that_is_thrown_away_gives_its_slot_back",),
    ),
    Fault(
        "urllib3_cut_body_is_good",
        BODIES,
        "        self.stepping = True\n",
        "",
        (CALLS + "a_body_that_is_cut_off_is_a_failure",),
    ),
    Fault(
        "urllib3_one_shot_body_again",
        POOLS,
        "            else body,\n",
        "            else ByteStream(body),\n",
        (CALLS + "b52_a_body_that_can_be_sent_once_is_sent_once",),
    ),
    Fault(
        "requests_wraps_our_errors",
        ADAPTER,
        "if not isinstance(inner, ResilienceError):",
        "if True:",
        (DEADLINES + "the_deadline_holds[never-answers-requests]",),
    ),
    Fault(
        "requests_close_wakes_nobody",
        ADAPTER,
        "        self._calls.close()\n        super().close()",
        "        super().close()",
        (CALLS + "b53_closing_wakes_who_waits_for_his_next_attempt[requests]",),
    ),
    Fault(
        "requests_proxies_left_out",
        ADAPTER,
        "        if not known:\n            equip(self._calls, manager)\n",
        "",
        (URLLIB3 + "through_a_proxy_the_dependency_is_the_one_behind_it",),
    ),
    Fault(
        "aiohttp_body_without_an_alarm",
        ALARM,
        "call_later(max(0.0, left), self._alarm)",
        "call_later(60, self._alarm)",
        (DEADLINES + "the_deadline_holds[drips-body-aiohttp]",),
    ),
    Fault(
        "aiohttp_expired_body_changes_its_mind",
        ALARM,
        "        answer.content.set_exception(error)\n",
        "",
        (AIOHTTP + "an_expired_body_stays_expired",),
    ),
    Fault(
        "aiohttp_cancelled_body_judged",
        ALARM,
        "isinstance(sys.exception(), asyncio.CancelledError)",
        "False",
        (AIOHTTP + "b61_a_cancelled_call_says_nothing_about_the_dependency",),
    ),
    Fault(
        "aiohttp_cut_body_is_good",
        ALARM,
        "type(error) is not aiohttp.ClientConnectionError",
        "False",
        (CALLS + "a_body_that_is_cut_off_is_a_failure[aiohttp]",),
    ),
    Fault(
        "aiohttp_websocket_cut_off",
        SENDING,
        " or answer.status == 101",
        "",
        (AIOHTTP + "a_websocket_is_not_cut_off_and_holds_no_slot",),
    ),
    Fault(
        "aiohttp_repeats_by_itself",
        SENDING,
        "        session._retry_connection = False  # noqa",
        "        pass  # noqa",
        (CALLS + "the_library_sends_nothing_again_by_itself[aiohttp]",),
    ),
    Fault(
        "aiohttp_strangers_not_repeated",
        SENDING,
        "        _patient.add(session)\n",
        "",
        (AIOHTTP + "a_request_of_no_dependency_is_repeated_as_aiohttp_does",),
    ),
    Fault(
        "aiohttp_connects_for_ever",
        SENDING,
        "            self._timer.reschedule(asyncio.get_running_loop().time() + self._timeout)\n",
        "            pass\n",
        (DEADLINES + "connecting_has_a_timeout_of_its_own[aiohttp]",),
    ),
    Fault(
        "aiohttp_head_told_before_connecting",
        SENDING,
        "        _write(asked, request.headers, Headers(message.headers))\n",
        "",
        (CALLS + "the_deadline_is_told_as_it_is_after_connecting[aiohttp]",),
    ),
    Fault(
        "aiohttp_one_shot_body_again",
        SENDING,
        "again = not body or isinstance(",
        "again = True or isinstance(",
        (CALLS + "b52_a_body_that_can_be_sent_once_is_sent_once[aiohttp]",),
    ),
    Fault(
        "aiohttp_stale_connection_is_a_failure",
        SENDING,
        "                scope.count(0)  # Not one byte of an answer.\n",
        "                pass\n",
        (CALLS + "a_connection_that_went_stale_is_no_failure_of_the_dependency[aiohttp]",),
    ),
    Fault(
        "aiohttp_pool_wait_not_known",
        SENDING,
        "phase(Phase.POOL)",
        "phase(None)",
        (DEADLINES + "waiting_for_a_connection_of_the_pool[aiohttp]",),
    ),
)

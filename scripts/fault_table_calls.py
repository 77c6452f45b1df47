"""The faults of the client half's transports, and of what the field cases B34 to B73 guard against.

Faults of its decisions alone stand in `fault_table_machines.py`, those of one deadline and of bad input in
`fault_table_calls_bounds.py`.
"""

from __future__ import annotations

from fault_table import ASYNC_GATE, Fault
from fault_table_machines import BREAKER, CALL, DRIVE_ASYNC, DRIVE_SYNC, MATCH, RETRY

ASGI = "resilient_mw/asgi/middleware.py"
WSGI_BODY = "resilient_mw/wsgi/body.py"
CLOCKS = "resilient_mw/runtime/clocks.py"
RETRY_AFTER = "resilient_mw/core/headers/retry_after.py"
SYNC = "resilient_mw/transport/sync.py"
AIO = "resilient_mw/transport/aio.py"
SENDING = "resilient_mw/transport/sending.py"
EXCHANGE = "resilient_mw/transport/exchange.py"
FACTS = "resilient_mw/transport/facts.py"
PREPARE = "resilient_mw/transport/prepare.py"
SCOPE = "resilient_mw/transport/scope.py"
STREAMS = "resilient_mw/transport/streams.py"
TRACE = "resilient_mw/transport/trace.py"
GATE = "integrations/resilient_mw_integrations/_httpx_gate.py"
POOLS = "integrations/resilient_mw_integrations/_httpx_pools.py"

BACK = "tests/field/test_giving_back.py::test_b34_"
CASES = "tests/field/test_calls_cases.py::test_"
ENDINGS = "tests/integrations/test_httpx_endings.py::test_"
HEADERS = "tests/integrations/test_httpx_headers.py::test_"
RETRIES = "tests/integrations/test_httpx_retries.py::test_"
GATES = "tests/integrations/test_httpx_gate.py::test_"
CALLS = "tests/calls/"
FACTS_TESTS = "tests/transport/test_facts.py::test_"

CALLS_FAULTS = (
    # -- B34: given back without waiting for anything
    Fault("b34_call_cancelled_after_an_await", DRIVE_ASYNC,
        "        owner.cancel(call)\n", "        await attempts.discard()\n        owner.cancel(call)\n",
        (BACK + "what_is_held_is_given_back_before_anything_is_awaited",)),
    Fault("b34_cancelled_twice", DRIVE_ASYNC,
        "        owner.cancel(call)\n",
        "        import asyncio\n\n        await asyncio.sleep(0)\n        owner.cancel(call)\n",
        (BACK + "a_cancel_at_any_step_gives_everything_back",)),
    Fault("b34_body_given_back_after_an_await", STREAMS,
        "delivery.interrupted()\n                    await self.aclose()",
        "await self.aclose()\n                    delivery.interrupted()",
        (BACK + "what_is_held_is_given_back_before_anything_is_awaited",)),
    Fault("b34_waiter_left_after_an_await", ASYNC_GATE,
        "        except BaseException:\n            guard.leave(waiter)",
        "        except BaseException:\n            await asyncio.sleep(0)\n            guard.leave(waiter)",
        (BACK + "a_slot_of_the_server_comes_back_whoever_is_cancelled_when",)),
    Fault("b34_slot_left_after_an_await", ASGI,
        "            supervisor.leave(exchange, release)\n",
        "            await __import__('asyncio').sleep(0)\n            supervisor.leave(exchange, release)\n",
        (BACK + "a_slot_of_the_server_comes_back_whoever_is_cancelled_when",)),
    Fault("b34_slot_kept_by_an_interrupted_close", WSGI_BODY,
        "            raise\n        finally:\n            run.end()", "            raise\n        run.end()",
        (BACK + "a_slot_of_the_server_comes_back_wherever_a_thread_is_interrupted",)),
    Fault("b34_interrupted_thread_keeps_the_place", DRIVE_SYNC,
        "        owner.cancel(call)\n", "        pass\n",
        (BACK + "an_interruption_at_any_step_gives_everything_back",)),
    Fault("b34_place_in_the_retry_budget_kept", CALL,
        "        self._forgo()\n        self._stage = OVER\n\n    def budget",
        "        self._stage = OVER\n\n    def budget",
        (BACK + "a_cancel_in_the_back_off_gives_its_place_in_the_retry_budget_back",)),
    Fault("b34_turn_kept_by_a_cancelled_request", GATE,
        "        except BaseException:\n            self._leave()", "        except Exception:\n            self._leave()",
        (BACK + "a_storm_of_callers_who_give_up_leaves_nothing_behind",
         GATES + "a_failure_and_a_second_close_give_one_turn")),
    Fault("b34_turn_kept_by_an_interrupted_thread", GATE,
        "        except BaseException:\n            self._free.release()",
        "        except Exception:\n            self._free.release()",
        (GATES + "threads_wait_for_their_turn",)),
    Fault("b34_turn_lost_between_two_cancels", GATE,
        "if turn.done() and not turn.cancelled():", "if False:",
        (GATES + "a_turn_that_comes_when_its_waiter_is_cancelled_is_handed_on",)),
    # -- B50: discarded responses
    Fault("b50_discarded_response_left_open_by_threads", SYNC,
        "                response.close()\n            except", "                pass\n            except",
        (RETRIES + "b50_every_discarded_response_of_a_foreign_transport_is_closed_once",)),
    Fault("b50_discarded_response_left_open_by_tasks", AIO,
        "                await close_reading(reading)\n            except", "                pass\n            except",
        (RETRIES + "b50_every_discarded_response_of_a_foreign_transport_is_closed_once",)),
    Fault("b34_body_cancelled_anywhere", "resilient_mw/transport/reading.py",
        "step = self._step = asyncio.ensure_future(anext(self._iterator, None))",
        "return await anext(self._iterator, None)",
        (BACK + "a_second_cancel_while_a_body_is_cleaned_up_after_leaves_no_connection_behind",)),
    Fault("caller_waits_for_a_step_of_another_call", "resilient_mw/transport/reading.py",
        "    if not reading.busy:\n", "    if True:\n",
        ("tests/transport/test_reading.py",)),
    Fault("b34_body_closed_beside_its_step", "resilient_mw/transport/reading.py",
        "            await asyncio.wait((self._step,))\n        # One", "            pass\n        # One",
        ("tests/transport/test_reading.py",)),
    Fault("b50_never_discarded", DRIVE_SYNC,
        "elif isinstance(action, Discard):\n                    attempts.discard(action.number)",
        "elif isinstance(action, Discard):\n                    pass",
        (RETRIES + "b50_a_retry_that_is_not_made_in_the_end_has_closed_the_response_before",)),
    Fault("b50_read_to_its_end_however_large", EXCHANGE, "DRAIN_LIMIT = 65_536", "DRAIN_LIMIT = 1 << 40", (
        RETRIES + "b50_discarded_responses_give_their_connection_back",
    )),
    Fault("b50_read_to_its_end_however_slow", EXCHANGE, "DRAIN_SECONDS = 0.05", "DRAIN_SECONDS = 60.0", (
        RETRIES + "b50_a_discarded_body_that_stalls_is_closed_instead",
    )),
    # -- B52: bodies that can be sent once
    Fault("b52_generator_sent_again", PREPARE, "if not can_repeat(library, request.stream):", "if False:", (
        RETRIES + "b52_a_body_that_can_be_sent_once_is_not_sent_again",
    )),
    Fault("b52_file_in_a_form_sent_again", PREPARE,
        'return all(isinstance(getattr(field, "file", b""), bytes | str) for field in fields)', "return True",
        (RETRIES + "b52_a_body_that_can_be_sent_once_is_not_sent_again",)),
    Fault("b52_body_that_was_begun_forgotten", FACTS, "if consumed and phase in UNSENT:", "if False:", (
        RETRIES + "b52_a_body_that_somebody_has_taken_before_the_connection_failed",
    )),
    # -- B53: closing
    Fault("b53_close_not_forwarded_by_threads", SYNC, "self._wake()\n        self._inner.close()", "self._wake()", (
        ENDINGS + "b53_closing_is_forwarded_exactly_once",
    )),
    Fault("b53_close_not_forwarded_by_tasks", AIO, "self._wake()\n        await self._inner.aclose()", "self._wake()", (
        ENDINGS + "b53_closing_is_forwarded_exactly_once",
    )),
    Fault("b53_enter_not_forwarded", SYNC, "        self._inner.__enter__()\n", "", (
        ENDINGS + "b53_a_context_is_forwarded_exactly_once",
    )),
    Fault("b53_error_kept_from_the_inner_transport", AIO,
        "await self._inner.__aexit__(kind, error, traceback)", "await self._inner.__aexit__(None, None, None)",
        (ENDINGS + "b53_an_error_inside_reaches_the_inner_transport",)),
    Fault("b53_back_off_outlives_its_client_in_threads", SYNC, "            sleeper.set()\n", "", (
        ENDINGS + "b53_a_back_off_ends_when_the_transport_is_closed",
    )),
    Fault("b53_back_off_outlives_its_client_in_tasks", "resilient_mw/runtime/slot_waits.py", "sleeper.set_result(None)", "pass", (
        ENDINGS + "b53_a_back_off_ends_when_the_transport_is_closed",
    )),
    Fault("b53_pool_left_open", POOLS, "        self._pool.close()\n", "        pass\n", (
        ENDINGS + "b53_no_socket_stays_open",
    )),
    # -- B55: Retry-After
    Fault("b55_date_read_on_our_clock", FACTS, "wall_now if written is None else written", "wall_now", (
        RETRIES + "b55_retry_after",
        FACTS_TESTS + "b55_a_date_is_meant_on_the_clock_that_wrote_it",
    )),
    Fault("b55_past_date_is_negative", RETRY_AFTER,
        "max(0, min(math.ceil(instant - now), _MAX_DELAY))", "min(math.ceil(instant - now), _MAX_DELAY)",
        (FACTS_TESTS + "b55_retry_after_without_a_date",)),
    Fault("b55_no_wait_is_no_back_off", RETRY,
        "delay = max(delay, state.spread(tried.retry_after))", "delay = state.spread(tried.retry_after)",
        (RETRIES + "b55_no_wait_is_the_ordinary_back_off_and_no_hot_loop",)),
    # -- B61: cancelled in the body
    Fault("b61_cancelled_attempt_goes_on", "resilient_mw/transport/leaving.py",
        "    if scope.interruptible or not bounded:\n        task.cancel()\n", "", (
        ENDINGS + "b61_a_cancelled_call_holds_nothing",
    )),
    Fault("b61_cancelled_body_left_open", STREAMS,
        "delivery.interrupted()\n                    await self.aclose()", "delivery.interrupted()",
        (ENDINGS + "an_interruption_in_the_body_closes_it",)),
    Fault("b61_interrupted_body_left_open", STREAMS,
        "delivery.interrupted()\n                    self.close()", "delivery.interrupted()",
        (ENDINGS + "an_interruption_in_the_body_closes_it",)),
    Fault("b61_closing_can_be_cancelled", "resilient_mw/transport/reading.py",
        "await asyncio.shield(close_later(stream))", "await stream.aclose()",
        (ENDINGS + "b61_cancelled_while_a_half_read_response_is_closed",
         ENDINGS + "b61_cancelled_at_any_await_of_a_retry")),
    Fault("forgotten_response_keeps_its_slot", STREAMS, "            name = self._origin.abandon()\n", "            name = None\n", (
        ENDINGS + "a_forgotten_response_gives_its_slot_and_connection_back",
    )),
    # -- B62: who is told
    Fault("b62_told_to_everybody", PREPARE,
        "        if not candidates:\n            return None", "        if not candidates:\n            return self._rules[0][1]",
        (HEADERS + "b62_each_hop_of_a_redirect_is_looked_at_anew",
         HEADERS + "b62_what_goes_to_nobody_of_ours_passes_as_it_is")),
    Fault("b62_told_to_another_scheme", MATCH,
        "if scheme != self.scheme:", "if False:",
        (HEADERS + "b62_another_scheme_is_somebody_else",)),
    Fault("b62_told_to_another_port", MATCH,
        "return host == self.host and port == self.port", "return host == self.host",
        (HEADERS + "b62_other_ports_hosts_and_user_information_are_somebody_else",)),
    Fault("b62_told_twice", PREPARE,
        "            lines = [line for line in lines if line[1] not in names]\n", "            pass\n",
        (HEADERS + "the_callers_own_field_is_neither_doubled_nor_lengthened",)),
    Fault("b62_the_callers_own_field_overruled", PREPARE,
        "left = min(self.call.budget(now, number), self._caller_until - now)", "left = self.call.budget(now, number)",
        (HEADERS + "the_callers_own_field_is_neither_doubled_nor_lengthened",)),
    # -- what is told, and when
    Fault("told_once_for_all_attempts", TRACE,
        "allowance = self._allowance()", 'allowance = PHASES.setdefault("first", self._allowance())',
        (RETRIES + "all_attempts_spend_one_budget",)),
    Fault("told_before_the_connection_is_there", TRACE,
        "if phase is Phase.WRITE and self._header is not None:", "if False:",
        (HEADERS + "what_is_told_is_a_matter_of_the_last_moment",)),
    Fault("reserve_not_subtracted", "resilient_mw/calls/attempts.py",
        "left = self._deadline_at - now - state.reserve\n        if left < state.least:",
        "left = self._deadline_at - now\n        if left < state.least:",
        (CALLS + "test_call.py::test_below_the_smallest_useful_budget_nothing_is_sent",)),
    Fault("strangers_refusal_believed", FACTS, "refused=dependency.trusted and bool(", "refused=bool(", (
        RETRIES + "a_refusal_of_a_trusted_dependency_may_be_repeated_whatever_the_method",
    )),
    # -- B65, B67: trials
    Fault("b65_trial_kept_by_a_cancelled_attempt", CALL,
        'self._settle(now, attempt, None, "lost" if attempt.lost else "cancelled")', "self._state.give_slot()",
        (CASES + "b65_whatever_a_trial_ends_with_the_next_one_is_let_in",
         ENDINGS + "b61_a_cancelled_trial_gives_its_place_back")),
    Fault("b65_neutral_outcomes_keep_the_trial", BREAKER,
        "        if self.state is HALF_OPEN:\n            self._record_trial",
        "        if self.state is HALF_OPEN and failed is not None:\n            self._record_trial",
        (CASES + "b65_whatever_a_trial_ends_with_the_next_one_is_let_in",)),
    Fault("b67_all_are_let_through", BREAKER, "        return self._trials.has_place(now)\n", "        return True\n", (
        CASES + "b67_the_trials_are_shared_by_all_clients_of_a_dependency",
    )),
    # -- B68: the lock
    Fault("b68_lock_held_over_an_attempt", SYNC,
        "                    response = self._inner.handle_request(sent)\n",
        "                    with owner._lock:\n                        response = self._inner.handle_request(sent)\n",
        (CASES + "b68_all_clients_of_a_dependency_are_inside_their_attempts_at_once",)),
    Fault("b68_one_at_a_time_in_tasks", SENDING,
        "        done, _ = await asyncio.wait((task,), timeout=limit)\n",
        '        async with library.__dict__.setdefault("_one", asyncio.Lock()):\n'
        "            done, _ = await asyncio.wait((task,), timeout=limit)\n",
        (CASES + "b68_a_hook_that_calls_the_same_dependency_does_not_wait_for_its_own_call",)),
    # -- B70, B71: who is to blame, and for how much
    Fault("b70_callers_mistakes_are_failures", "resilient_mw/calls/breaker_policy.py",
        "frozenset(range(500, 600)) - {501, 505}", "frozenset(range(400, 600))",
        (CASES + "b70_one_callers_mistakes_take_the_dependency_from_nobody",)),
    Fault("b70_one_circuit_for_the_whole_host", MATCH,
        "return path.startswith(self.path) if self.below else path == self.path\n\n    def covers", "return True\n\n    def covers",
        (CASES + "b70_parts_of_a_host_that_are_dependencies_of_their_own_fail_on_their_own",)),
    Fault("b70_our_own_pool_blamed", FACTS, "ours=phase is Phase.POOL or _went_stale(", "ours=_went_stale(", (
        RETRIES + "b58_waiting_for_our_own_pool_is_no_failure_of_the_dependency",
    )),
    Fault("b71_slept_through_an_open_circuit", RETRY,
        "if breaker is not None and not breaker.would_allow(begin):", "if False:",
        (CASES + "b71_ten_calls_at_once_each_of_which_fails_twice_and_then_succeeds",)),
    Fault("b71_retry_budget_not_charged", RETRY,
        "if state.budget is not None and not state.budget.reserve(now, begin, tried.verdict.price):", "if False:",
        (CASES + "b71_retry_budget_and_breaker_bound_what_is_sent",)),
    # -- B73: the wall clock
    Fault("b73_durations_by_the_wall_clock", CLOCKS, "staticmethod(monotonic)", "staticmethod(lambda: time())", (
        CASES + "b73_a_jump_of_the_wall_clock_moves_no_circuit",
    )),
    Fault("b73_deadlines_by_the_wall_clock", CLOCKS, "staticmethod(monotonic)", "staticmethod(lambda: time())", (
        CASES + "b73_a_jump_of_the_wall_clock_moves_no_deadline_no_budget_and_no_wait",
    )),
    Fault("b73_queue_by_the_wall_clock", CLOCKS, "staticmethod(monotonic)", "staticmethod(lambda: time())", (
        CASES + "b73_a_jump_of_the_wall_clock_moves_no_wait_in_the_queue",
    )),
    Fault("b73_wait_by_the_wall_clock", FACTS, "wall_now if written is None else written", "wall_now", (
        CASES + "b73_a_jump_of_the_wall_clock_moves_no_deadline_no_budget_and_no_wait",
    )),
    Fault("b73_another_module_reads_the_wall_clock", SCOPE,
        "import asyncio\nimport math\n", "import asyncio\nimport math\nfrom time import time as time\n\ntime()\n",
        (CASES + "b73_who_reads_the_wall_clock_is_listed_here",)),
)  # fmt: skip

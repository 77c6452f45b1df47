"""Faults of the middlewares of idempotency keys: slots of those who wait, lost work, heartbeats, bodies under WSGI."""

from __future__ import annotations

from fault_table import Fault

LENT = "resilient_mw/runtime/lent_slots.py"
DESK = "resilient_mw/runtime/idempotency_desk.py"
HEARTS = "resilient_mw/runtime/heartbeats.py"
EXCHANGE = "resilient_mw/asgi/idempotency_exchange.py"
ATTEMPT = "resilient_mw/wsgi/idempotency_attempt.py"
WSGI_EXCHANGE = "resilient_mw/wsgi/idempotency_exchange.py"
WSGI_BODY = "resilient_mw/wsgi/idempotency_body.py"
WSGI_INPUT = "resilient_mw/wsgi/idempotency_input.py"
WORK = "resilient_mw/idempotency/work.py"
INSIDE = "tests/asgi/test_idempotency_inside.py"
WSGI = "tests/wsgi/test_idempotency.py"
DECISIONS = "tests/idempotency/test_machine.py"

FAULTS = (
    Fault(
        "idempotency_lent_slots_given_back_twice",
        LENT,
        "self._cost, holder._cost = holder._cost, 0",
        "self._cost = holder._cost",
        (f"{INSIDE}::TestSlots::test_b85_those_who_wait_hold_no_slot",),
    ),
    Fault(
        "idempotency_lent_slots_never_again",
        LENT,
        "        self._holder._cost = self._cost\n",
        "",
        (f"{INSIDE}::TestSlots::test_who_has_to_run_after_all_takes_a_slot_first",),
    ),
    Fault(
        "idempotency_waits_with_a_slot",
        EXCHANGE,
        "                self._lent = lend(self._context)\n",
        "                pass\n",
        (f"{INSIDE}::TestSlots::test_b85_those_who_wait_hold_no_slot",),
    ),
    Fault(
        "idempotency_runs_without_a_slot",
        EXCHANGE,
        "                        if await self._slots_again():\n",
        "                        if True:\n",
        (f"{INSIDE}::TestSlots::test_who_has_to_run_after_all_takes_a_slot_first",),
    ),
    Fault(
        "idempotency_refused_keeps_the_key",
        EXCHANGE,
        """        await self._end(self._work().given_up(), None)
        await self._refuse(refused""",
        "        await self._refuse(refused",
        (f"{INSIDE}::TestSlots::test_no_slot_for_who_has_to_run_frees_the_key",),
    ),
    Fault(
        "idempotency_lost_runs_on",
        EXCHANGE,
        "            self._runs_in.cancel()\n",
        "",
        (f"{INSIDE}::TestLost::test_work_that_somebody_else_has_is_cancelled",),
    ),
    Fault(
        "idempotency_lost_answers",
        EXCHANGE,
        "        if self._lost:\n            await asyncio.sleep(0)",
        "        if False:\n            await asyncio.sleep(0)",
        (f"{INSIDE}::TestLost::test_what_it_answers_in_its_clean_up_is_dropped",),
    ),
    Fault(
        "idempotency_504_frees",
        WORK,
        "if cancelled or cut_off:",
        "if cancelled:",
        (f"{DECISIONS}::TestEnd::test_b88_a_504_after_the_work_began_is_unknown",),
    ),
    Fault(
        "idempotency_no_origins",
        DESK,
        "return guard.policy if isinstance(guard, Guard) else None",
        "return None",
        (f"{INSIDE}::TestRefusals",),
    ),
    Fault(
        "idempotency_wsgi_waits_with_a_slot",
        WSGI_EXCHANGE,
        "                self._lent = lend(self._context)\n",
        "                pass\n",
        (f"{WSGI}::TestTogether::test_b85_those_who_wait_hold_no_slot",),
    ),
    Fault(
        "idempotency_wsgi_place_kept",
        WSGI_EXCHANGE,
        "            joins.leave(place)\n",
        "            pass\n",
        (f"{WSGI}::TestTogether::test_b85_sixty_four_threads_run_once",),
    ),
    Fault(
        "idempotency_wsgi_no_heartbeat",
        ATTEMPT,
        "            HEARTBEATS.add(self._beat)\n",
        "            pass\n",
        (f"{WSGI}::TestHeartbeats::test_b86_a_long_handler_keeps_its_key",),
    ),
    Fault(
        "idempotency_wsgi_dropped_beats_on",
        ATTEMPT,
        "        self._beat.stopped = True\n",
        "        pass\n",
        (f"{WSGI}::TestBody::test_a_body_that_is_dropped_has_no_heartbeat",),
    ),
    Fault(
        "idempotency_wsgi_lost_untold",
        ATTEMPT,
        "            cancel(CancelReason.CALLER)\n",
        "            pass\n",
        (f"{WSGI}::TestHeartbeats::test_work_that_somebody_else_has_is_told",),
    ),
    Fault(
        "idempotency_heartbeats_of_the_parent",
        HEARTS,
        "        after_fork(self)\n",
        "",
        (f"{WSGI}::TestHeartbeats::test_a_forked_child_has_a_thread_of_its_own",),
    ),
    Fault(
        "idempotency_wsgi_given_up_is_complete",
        WSGI_BODY,
        "            self._answering.fail()\n",
        "            self._answering.complete()\n",
        (f"{WSGI}::TestBody::test_a_body_that_is_given_up_leaves_unknown",),
    ),
    Fault(
        "idempotency_wsgi_last_piece_too_early",
        WSGI_BODY,
        "if self._length is not None and self._seen >= self._length and data:",
        "if False:",
        (f"{WSGI}::TestBody::test_the_piece_that_completes_the_length_waits_for_the_record",),
    ),
    Fault(
        "idempotency_wsgi_body_eaten",
        WSGI_INPUT,
        '        self._kept = b"".join(parts)\n',
        "",
        (f"{WSGI}::TestInput::test_b02_the_application_reads_what_was_sent",),
    ),
    Fault(
        "idempotency_wsgi_half_a_body_runs",
        WSGI_INPUT,
        "            self.gone = not data and not self.complete\n",
        "            self.gone, self.complete = False, self.complete or not data\n",
        (f"{WSGI}::TestInput::test_a_body_that_ends_too_early_runs_nothing",),
    ),
)

"""Faults of those who watch calls, and of the tracing that does."""

from __future__ import annotations

from fault_table import Fault

WATCHED = "resilient_mw/runtime/watched.py"
TRACING = "integrations/resilient_mw_integrations/opentelemetry.py"
TESTS = "tests/runtime/test_watched.py::"
TRACED = "tests/integrations/test_opentelemetry.py::"

FAULTS = (
    Fault(
        "watched_told_by_a_finalizer",
        WATCHED,
        "            _untold.ends.append((self.clock.now(), self))",
        "            self.gone(self.clock.now())",
        (TESTS + "test_a_finalizer_tells_nobody",),
    ),
    Fault(
        "watched_told_twice",
        WATCHED,
        "        if not self._over:\n            self._over = True\n            self._tell_all",
        "        if True:\n            self._over = True\n            self._tell_all",
        (TESTS + "test_what_comes_after_the_end_is_told_to_nobody",),
    ),
    Fault(
        "watched_fails_the_call",
        WATCHED,
        "        except Exception:  # noqa: BLE001  whoever watches is a guest: what it raises changes nothing",
        "        except LookupError:",
        (TRACED + "test_a_span_that_fails_changes_nothing_and_is_counted",),
    ),
    Fault(
        "watched_uncounted",
        WATCHED,
        "            self.state.watch_errors += 1",
        "            pass",
        (TRACED + "test_a_span_that_fails_changes_nothing_and_is_counted",),
    ),
    Fault(
        "watched_ends_of_the_parent",
        WATCHED,
        "        self.ends.clear()",
        "        pass",
        (TESTS + "test_a_forked_child_tells_no_end_of_its_parent_s_calls",),
    ),
    Fault(
        "tracing_stays_current",
        TRACING,
        "            context.detach(token)",
        "            pass",
        (TRACED + "test_the_caller_s_span_is_current_again_while_the_body_is_read",),
    ),
    Fault(
        "tracing_doubles_the_client_span",
        TRACING,
        "kind=SpanKind.INTERNAL",
        "kind=SpanKind.CLIENT",
        (TRACED + "test_what_is_traced_in_an_attempt_lies_below_the_call",),
    ),
    Fault(
        "tracing_writes_into_an_ended_span",
        TRACING,
        "        if not self._span.is_recording():\n            return\n",
        "",
        (TRACED + "test_an_attempt_that_ends_after_its_call_is_not_told_of",),
    ),
    Fault(
        "tracing_blames_who_gives_up",
        TRACING,
        "    if end.outcome not in ERRORS:\n        return None",
        "    if not end.outcome:\n        return None",
        (TRACED + "test_a_caller_who_gives_up_is_no_error",),
    ),
)

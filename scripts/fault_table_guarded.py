"""Faults of guarded functions."""

from __future__ import annotations

from fault_table import Fault

GUARDED = "resilient_mw/runtime/guarded.py"
TESTS = "tests/runtime/test_guarded.py::"

FAULTS = (
    Fault(
        "guarded_always_repeated",
        GUARDED,
        "keyed=idempotent",
        "keyed=True",
        (TESTS + "test_a_function_runs_once_unless_it_is_idempotent",),
    ),
    Fault(
        "guarded_b79",
        GUARDED,
        "        except RequestCancelled:\n            raise\n        except Exception as error:  # noqa: BLE001  whatever the function raises\n            return self.broke(error)\n        if isinstance",
        "        except RequestCancelled:\n            raise\n        except BaseException as error:  # noqa: BLE001  whatever the function raises\n            return self.broke(error)\n        if isinstance",
        (TESTS + "test_b79_control_flow_passes_at_its_first_occurrence",),
    ),
    Fault(
        "guarded_b79_request_cancelled",
        GUARDED,
        "        except RequestCancelled:\n            raise\n        except Exception as error:  # noqa: BLE001  whatever the function raises\n            return self.broke(error)\n        if isinstance",
        "        except Exception as error:  # noqa: BLE001  whatever the function raises\n            return self.broke(error)\n        if isinstance",
        (TESTS + "test_a_function_that_sees_its_request_cancelled_blames_nobody",),
    ),
    Fault(
        "guarded_attempt_without_time",
        GUARDED,
        "        return Within(current(), start.timeout, again)\n",
        "        return Within(current(), 1e9, again)\n",
        (TESTS + "test_the_function_sees_the_time_of_its_attempt",),
    ),
    Fault(
        "guarded_coroutine_not_cancelled",
        GUARDED,
        "            async with self.begins(start):\n",
        "            with self.begins(start):\n",
        (TESTS + "test_a_coroutine_is_cancelled_at_the_timeout_of_the_dependency",),
    ),
    Fault(
        "guarded_overrun_is_good",
        GUARDED,
        "OVERRUN if late else None",
        "None",
        (
            TESTS + "test_a_thread_that_overruns_gets_its_result_and_is_counted",
            TESTS + "test_a_thread_that_overruns_the_callers_budget_is_counted_as_expired",
        ),
    ),
    Fault(
        "guarded_never_ended",
        GUARDED,
        "                self._owner.end(self.call, OVERRUN if late else None)\n",
        "",
        (TESTS + "test_a_dependency_without_a_match_is_called_and_counted",),
    ),
    Fault(
        "guarded_retry_of_a_cancelled_request",
        "resilient_mw/runtime/slot_waits.py",
        "    if reason is not None and reason is not CancelReason.DEADLINE:\n",
        "    if False:\n",
        (TESTS + "test_a_request_that_is_over_is_not_tried_again",),
    ),
    Fault(
        "guarded_errors_in_a_circle",
        GUARDED,
        "            del error, raised\n",
        "            pass\n",
        (TESTS + "test_nothing_waits_for_a_garbage_collection",),
    ),
    Fault(
        "guarded_hook_hides_the_error",
        GUARDED,
        "        except Exception as mistake:  # noqa: BLE001  code of the user\n",
        "        except ZeroDivisionError as mistake:\n",
        (TESTS + "test_a_hook_that_breaks_hides_nothing",),
    ),
    Fault(
        "guarded_first_class_wins",
        "resilient_mw/calls/guarded.py",
        "    for kind in type(error).__mro__:\n",
        "    for kind in reversed(type(error).__mro__):\n",
        ("tests/calls/test_guarded.py::test_the_nearest_class_counts_and_others_stay_as_they_were",),
    ),
)

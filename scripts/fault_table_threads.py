"""The faults of the sum of WSGI's threads, and of the time that a request stands in front of them."""

from __future__ import annotations

from fault_table import Fault

SUM = "resilient_mw/admission/threads.py"
SERVER = "resilient_mw/wsgi/threads.py"
GUNICORN = "integrations/resilient_mw_integrations/gunicorn.py"

PURE = "tests/admission/test_threads.py::test_"
TOLD = "tests/wsgi/test_thread_count.py::test_"
REAL = "tests/integrations/test_gunicorn.py::test_"

FAULTS = (
    Fault("threads_always_suffice", SUM, "if self.threads >= self.limit + self.spare + (", "if True or (",
        (PURE + "what_is_wrong_and_what_to_change", TOLD + "too_few_threads_are_complained_of_once_and_do_no_harm")),
    Fault("threads_without_spare", SUM, "self.threads - self.limit - self.spare))", "self.threads - self.limit))",
        (PURE + "a_shortened_queue_is_the_longest_that_fits", TOLD + "a_queue_is_shortened_to_what_fits")),
    Fault("threads_queue_never_fitted", "resilient_mw/admission/policy_numbers.py",
        "needs.room if needs is not None and self.fit_queue else self.queue_asked", "self.queue_asked",
        (PURE + "the_queue_of_a_policy_is_shortened_only_where_it_says_so", TOLD + "a_queue_is_shortened_to_what_fits")),
    Fault("threads_queue_always_fitted", "resilient_mw/admission/policy_numbers.py",
        "if needs is not None and self.fit_queue", "if needs is not None",
        (PURE + "the_queue_of_a_policy_is_shortened_only_where_it_says_so",)),
    Fault("threads_forgotten_by_a_reload", "resilient_mw/runtime/reload.py",
        "if after.threads is None and before.threads is not None:", "if False:",
        (TOLD + "a_queue_is_shortened_to_what_fits",)),
    Fault("threads_judged_twice", SERVER, "            _unjudged.discard(each)\n", "            pass\n",
        (TOLD + "too_few_threads_are_complained_of_once_and_do_no_harm",)),
    Fault("threads_of_the_policy_overruled", SERVER, "    if policy.threads is not None:\n", "    if told is None and policy.threads:\n",
        (TOLD + "what_a_policy_says_counts_more_than_what_a_server_tells",)),
    Fault("wait_before_threads_not_charged", "resilient_mw/wsgi/middleware.py", "environ.get(WAITED, 0.0),", "0.0,",
        (TOLD + "the_time_before_the_threads_is_charged",)),
    Fault("gunicorn_wait_not_measured", GUNICORN, "_here.waited = _waited(conn)", "_here.waited = 0.0",
        (REAL + "a_dead_backlog_is_refused_without_reaching_the_application",)),
    Fault("gunicorn_wait_of_sync_not_measured", GUNICORN, "waited = since_last_data(environ.get(\"gunicorn.socket\"))",
        "waited = 0.0",
        (REAL + "sync_workers_say_that_nothing_is_left_to_admit_and_keep_deadlines",)),
    Fault("gunicorn_idle_caller_charged", GUNICORN, "        return 0.0  # a caller who has connected",
        "        return since_queued  # a caller who has connected",
        (REAL + "over_a_unix_socket_the_time_since_the_connection_was_queued_counts",)),
    Fault("gunicorn_without_drain", GUNICORN, "        policy.drain_on_signal()\n", "",
        (REAL + "at_sigterm_what_stands_before_the_threads_is_refused",)),
)  # fmt: skip

"""The faults of an attempt's one deadline, of bad input and of what everybody shares in the client half."""

from __future__ import annotations

from fault_table import Fault
from fault_table_machines import CONFIG, DEPENDENCY

CHECKS = "resilient_mw/calls/dependency_checks.py"
ERRORS = "resilient_mw/core/errors.py"
PORTS = "resilient_mw/core/ports.py"
AIO = "resilient_mw/transport/aio.py"
STREAMS = "resilient_mw/transport/streams.py"
BACKEND = "integrations/resilient_mw_integrations/_httpcore.py"
INNER = "integrations/resilient_mw_integrations/_httpx_inner.py"
DEADLINES = "tests/integrations/test_httpx_deadlines.py::test_"
CALLS = "tests/calls/"

BOUND_FAULTS = (
    # -- one deadline for the whole attempt
    *(
        Fault(f"drip_into_a_thread_{case}", BACKEND,
            "scope.count(0)\n            timeout = _left(scope, timeout, self._core.ReadTimeout)", "scope.count(0)",
            (DEADLINES + f"the_deadline_holds[{case}]",))
        for case in (
            "drips-head-httpx-sync", "drips-head-httpx2-sync",
            "drips-between-chunks-httpx-sync", "drips-between-chunks-httpx2-sync",
        )
    ),
    Fault("stall_after_a_late_head", BACKEND,
        "scope.count(0)\n            timeout = _left(scope, timeout, self._core.ReadTimeout)", "scope.count(0)",
        (DEADLINES + "a_body_that_stalls_after_a_late_head",)),
    Fault("slow_reader_of_a_thread", BACKEND, "_left(scope, timeout, self._core.WriteTimeout)", "timeout", (
        DEADLINES + "the_deadline_holds",
    )),
    Fault("drip_from_a_foreign_transport", STREAMS,
        "next(iterator, None)\n                    if chunk is not None and delivery.overdue():",
        "next(iterator, None)\n                    if False:",
        (DEADLINES + "a_body_of_a_transport_that_knows_no_timeouts",)),
    Fault("time_of_resolving_not_charged", BACKEND,
        "        scope.connecting(timeout)\n        scope.phase = Phase.DNS\n        addresses = self._resolve(host, port)\n",
        "        scope.phase = Phase.DNS\n        addresses = self._resolve(host, port)\n        scope.connecting(timeout)\n",
        (DEADLINES + "the_steps_of_connecting_share_one_time",)),
    Fault("tls_with_a_time_of_its_own", BACKEND, "return scope.left_to_connect(timeout)", "return timeout", (
        DEADLINES + "the_steps_of_connecting_share_one_time",
    )),
    Fault("silent_address_takes_all_the_time", BACKEND,
        "return None if left is None else left / addresses", "return left",
        (DEADLINES + "a_silent_address_leaves_time_for_the_next_one",)),
    Fault("task_without_a_deadline", "resilient_mw/transport/sending.py", "asyncio.wait((task,), timeout=limit)", "asyncio.wait((task,))", (
        DEADLINES + "the_deadline_holds",
    )),
    Fault("body_of_a_task_without_a_deadline", "resilient_mw/transport/reading.py",
        "timeout=None if seconds is None else max(0.0, seconds)", "timeout=None",
        (DEADLINES + "the_deadline_holds",)),
    Fault("http_transport_of_the_user_not_bounded", INNER,
        "pool._network_backend = make(kit.core, backend)", "make(kit.core, backend)",
        (DEADLINES + "an_http_transport_of_the_user_is_bounded_too",)),
    # -- bad input
    Fault("name_accepted_twice", DEPENDENCY, "if earlier.name == dependency.name:", "if False:", (
        CALLS + "test_dependency.py::test_a_name_may_stand_once",
    )),
    Fault("breaker_that_hardly_opens_accepted", CHECKS,
        "if dependency.breaker is not None and dependency.timeout is None:", "if False:",
        (CALLS + "test_dependency.py::"
         "test_what_has_less_effect_than_it_seems_is_warned_about_where_it_was_written",)),
    Fault("unsafe_retry_accepted", CONFIG,
        "for method in self.unsafe_methods:", "for method in ():",
        (CALLS + "test_dependency.py::"
         "test_what_has_less_effect_than_it_seems_is_warned_about_where_it_was_written",)),
    Fault("client_wrapped_twice", INNER,
        "if any(isinstance(transport, ours) for transport in transports):", "if False:",
        ("tests/integrations/test_httpx_errors.py::test_bad_input",)),
    # -- values that everybody shares
    Fault("error_lost_between_two_processes", ERRORS,
        "return _restored, (type(self), self.args), self.__dict__", "return type(self), self.args, self.__dict__",
        ("tests/core/test_errors.py",)),
    Fault("registry_read_while_it_changes", PORTS, "except RuntimeError:", "except ZeroDivisionError:", (
        "tests/core/test_ports.py",
    )),
)  # fmt: skip

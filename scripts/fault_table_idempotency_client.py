"""Faults of the sending end of idempotency keys."""

from __future__ import annotations

from fault_table import Fault

KEY = "resilient_mw/calls/key.py"
PREPARE = "resilient_mw/transport/prepare.py"
JOB = "resilient_mw/runtime/running_job.py"
TESTS = "tests/integrations/test_job_keys.py::"
AGAIN = (TESTS + "test_a_second_delivery_calls_with_the_same_keys",)

FAULTS = (
    Fault(
        "job_keys_new_at_each_delivery",
        PREPARE,
        "        if job is None:",
        "        if job or not job:",
        AGAIN,
    ),
    Fault("job_keys_without_the_number", JOB, "*call, str(number))", "*call)", AGAIN),
    Fault("job_keys_without_the_kind", JOB, "*call, str(number))", "str(number))", AGAIN),
    Fault(
        "job_keys_of_every_task",
        JOB,
        '"call", self.key, self.task or "",',
        '"call", self.key, "",',
        AGAIN,
    ),
    Fault(
        "job_keys_of_every_job",
        JOB,
        '"call", self.key, self.task or "",',
        '"call", self.task or "",',
        AGAIN,
    ),
    Fault(
        "job_keys_count_in_two_steps",
        JOB,
        "number = next(self._calls.setdefault(call, itertools.count(1)))",
        "number = 1 if call not in self._calls else 2\n        self._calls[call] = iter(())",
        (TESTS + "test_calls_from_many_threads_get_keys_of_their_own",),
    ),
    Fault(
        "derived_key_of_joined_texts",
        KEY,
        'hashed.update(b"%d:" % len(data))',
        'hashed.update(b"")',
        (TESTS + "test_no_two_lists_of_texts_have_one_key",),
    ),
    Fault(
        "derived_key_of_another_form",
        KEY,
        "uuid4(bits) if version == UUID4 else uuid8(bits)",
        "uuid8(bits)",
        (TESTS + "test_the_form_of_a_derived_key",),
    ),
    Fault(
        "named_key_outside_of_jobs",
        JOB,
        "        raise LookupError(",
        "        return (",
        (TESTS + "test_a_name_outside_of_jobs_is_an_error",),
    ),
)

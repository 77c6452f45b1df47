"""Faults of background jobs for `plant_faults.py`: each name says which guard is taken out."""

from __future__ import annotations

from fault_table import Fault

MACHINE = "resilient_mw/admission/jobs.py"
CONSUMERS = "resilient_mw/runtime/jobs_consumers.py"
DURABLE = "resilient_mw/runtime/jobs_durable.py"
SQLITE = "resilient_mw/stores/jobs_sqlite.py"
CELERY = "integrations/resilient_mw_integrations/celery.py"
LOOP_TESTS = "tests/runtime/test_jobs.py::"
MACHINE_TESTS = "tests/admission/test_jobs.py::"
STORE_TESTS = "tests/stores/test_jobs_stores.py::"
CELERY_TESTS = "tests/integrations/test_celery.py::"

FAULTS = (
    Fault(
        "jobs_share_of_the_places",
        MACHINE,
        "and self.queued + held < mine.room",
        "and self.queued + held < self.policy.places",
        (MACHINE_TESTS + "test_the_last_places_are_for_higher_classes",),
    ),
    Fault(
        "jobs_promised_while_draining",
        MACHINE,
        "        if self.draining:\n            return ()\n",
        "",
        (MACHINE_TESTS + "test_while_it_drains_nothing_is_promised_and_what_is_goes_on",),
    ),
    Fault(
        "jobs_begun_after_they_expired",
        MACHINE,
        "            if job.expires_at <= now:\n",
        "            if job.expires_at < 0:\n",
        (MACHINE_TESTS + "test_an_expired_job_is_not_begun_and_is_counted",),
    ),
    Fault(
        "jobs_failures_tell_how_long_one_takes",
        MACHINE,
        'if outcome == "completed" and ran > 0:',
        "if ran > 0:",
        (MACHINE_TESTS + "test_retry_after_follows_the_backlog",),
    ),
    Fault(
        "jobs_key_of_other_arguments",
        SQLITE,
        "        check_repeat(job, known[1])\n",
        "",
        (STORE_TESTS + "test_a_key_of_a_job_with_other_arguments_is_refused",),
    ),
    Fault(
        "jobs_lease_is_no_deadline",
        CONSUMERS,
        "JobRecord(task, job.lease_until, now,",
        "JobRecord(task, job.expires_at, now,",
        (LOOP_TESTS + "test_the_lease_is_the_deadline_and_cancels_the_handler",),
    ),
    Fault(
        "jobs_slot_before_the_work_has_stopped",
        CONSUMERS,
        "            await stopped\n",
        "",
        (LOOP_TESTS + "test_work_that_a_job_leaves_behind_keeps_its_slot",),
    ),
    Fault(
        "jobs_worker_lost_to_what_ends_coroutines",
        CONSUMERS,
        "isinstance(caught, GeneratorExit) and not _is_current(task)",
        "isinstance(caught, GeneratorExit)",
        (LOOP_TESTS + "test_whatever_a_job_raises_its_worker_does_the_next_one",),
    ),
    Fault(
        "jobs_worker_waits_for_an_exhausted_iterator",
        CONSUMERS,
        "    except StopIteration as error:\n",
        "    except ZeroDivisionError as error:\n",
        (LOOP_TESTS + "test_whatever_a_job_raises_its_worker_does_the_next_one",),
    ),
    Fault(
        "jobs_put_while_the_store_is_looked_at",
        CONSUMERS,
        "await self._in_thread(self._waits_there) or self._one_is_left()",
        "await self._in_thread(self._waits_there)",
        (LOOP_TESTS + "test_a_job_that_comes_while_the_store_is_looked_at_is_begun_afterwards",),
    ),
    Fault(
        "jobs_sleepers_are_not_told_of_the_store",
        "resilient_mw/runtime/jobs_threads.py",
        "self._changed.notify()  # there may be more",
        "pass  # there may be more",
        ("tests/runtime/test_jobs_threads.py::test_what_waits_in_the_store_is_done_by_all_workers",),
    ),
    Fault(
        "jobs_claim_dropped_for_want_of_figures",
        DURABLE,
        "        self._waits_there()\n        if claim is None:\n",
        "        self._counts = self.store.counts(now)\n        if claim is None:\n",
        (LOOP_TESTS + "test_a_claim_is_kept_when_the_store_cannot_say_what_it_holds",),
    ),
    Fault(
        "jobs_withdrawn_in_silence",
        "resilient_mw/runtime/jobs.py",
        "if job.state is JobState.HELD:",
        "if False:",
        (
            "tests/integrations/test_background_tasks.py::test_a_response_that_is_not_sent_gives_the_place_back",
        ),
    ),
    Fault(
        "jobs_keys_that_json_changes",
        DURABLE,
        " or not _keeps_its_keys(job.args):",
        ":",
        (LOOP_TESTS + "test_durable_jobs_need_a_name_a_store_and_what_json_can_hold",),
    ),
    Fault(
        "jobs_slot_lost_with_its_queue",
        CONSUMERS,
        "                self._forgotten(job)\n",
        "",
        (LOOP_TESTS + "test_a_loop_that_is_closed_under_a_job_gives_the_slot_of_the_server_back",),
    ),
    Fault(
        "jobs_slot_lost_with_its_loop",
        CONSUMERS,
        "            for slot in slots.values():\n",
        "            for slot in ():\n",
        (LOOP_TESTS + "test_a_loop_that_is_closed_under_a_job_gives_the_slot_of_the_server_back",),
    ),
    Fault(
        "jobs_interrupted_caller_stays",
        CONSUMERS,
        "            self._leave(job)\n",
        "",
        (LOOP_TESTS + "test_whoever_is_cancelled_while_he_waits_leaves_nothing",),
    ),
    Fault(
        "jobs_servers_slot_lost",
        CONSUMERS,
        "                slot.end(outcome, ran)\n",
        "                pass\n",
        (LOOP_TESTS + "test_jobs_run_only_when_the_server_has_a_slot_for_them",),
    ),
    Fault(
        "jobs_starved_store",
        DURABLE,
        "return self._store_turn or not self._queue.queued",
        "return not self._queue.queued",
        (LOOP_TESTS + "test_the_store_is_not_starved_by_the_queue_in_memory",),
    ),
    Fault(
        "jobs_left_without_a_word",
        DURABLE,
        "                self._told_of_left(left)\n",
        "                pass\n",
        (LOOP_TESTS + "test_what_is_not_finished_in_time_is_cancelled_handed_back_and_reported",),
    ),
    Fault(
        "jobs_left_not_kept",
        DURABLE,
        "if not self._persisted(job)]",
        "]",
        (LOOP_TESTS + "test_what_is_left_is_kept_in_the_store_if_it_can_be_written_down",),
    ),
    Fault(
        "jobs_new_key_at_each_delivery",
        DURABLE,
        "new.id, new.key, self._functions",
        "new.id, f'{new.key}-{claim.attempt}', self._functions",
        (LOOP_TESTS + "test_a_durable_job_that_fails_is_delivered_again_with_its_key_and_owns_the_retries",),
    ),
    Fault(
        "jobs_no_retry_owner",
        "resilient_mw/runtime/jobs_owner.py",
        "return None if job.claim is None else RetryOwner(",
        "return None if job.claim is not self else RetryOwner(",
        (LOOP_TESTS + "test_a_durable_job_that_fails_is_delivered_again_with_its_key_and_owns_the_retries",),
    ),
    Fault(
        "jobs_no_fencing",
        SQLITE,
        'MINE = "WHERE id = ? AND token = ?',
        'MINE = "WHERE id = ? AND token >= ?',
        (STORE_TESTS + "test_a_job_whose_lease_is_over_is_delivered_again_with_its_key",),
    ),
    Fault(
        "jobs_write_lock_too_late",
        "resilient_mw/stores/connections.py",
        '                connection.execute("BEGIN IMMEDIATE")\n',
        '                connection.execute("BEGIN")\n',
        (STORE_TESTS + "test_two_stores_of_one_file_add_at_the_same_time",),
    ),
    Fault(
        "jobs_tasks_before_the_response",
        "integrations/resilient_mw_integrations/starlette/background.py",
        "hold=True",
        "hold=False",
        ("tests/integrations/test_background_tasks.py::test_tasks_begin_after_the_response",),
    ),
    Fault(
        "jobs_place_of_a_failed_response",
        "integrations/resilient_mw_integrations/starlette/background.py",
        "            task.add_done_callback(partial(_withdraw, jobs, self._held), context=Context())\n",
        "            pass\n",
        (
            "tests/integrations/test_background_tasks.py::test_a_response_that_is_not_sent_gives_the_place_back",
        ),
    ),
    Fault(
        "celery_limits_of_a_message_unread",
        CELERY,
        'getattr(request, "timelimit", None) or (None, None)',
        "request.time_limit, request.soft_time_limit",
        (CELERY_TESTS + "test_the_limits_of_a_message_are_read_where_every_celery_has_them",),
    ),
    Fault(
        "celery_expired_task_begins",
        CELERY,
        "entered.expires_at <= MONOTONIC.now():",
        "entered.expires_at <= 0:",
        (CELERY_TESTS + "test_an_expired_task_is_not_begun_and_is_revoked",),
    ),
    Fault(
        "celery_retry_beyond_the_budget",
        CELERY,
        "entered.expires_at - MONOTONIC.now() <= delay + self.typical_run:",
        "entered.expires_at - MONOTONIC.now() <= delay:",
        (CELERY_TESTS + "test_a_retry_that_cannot_finish_before_the_task_expires_is_not_made",),
    ),
    Fault(
        "celery_context_stays",
        CELERY,
        "    reset(entered.token)\n",
        "",
        (CELERY_TESTS + "test_the_context_is_that_of_the_task_and_is_gone_afterwards",),
    ),
)

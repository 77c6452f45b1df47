"""How many worker threads the server gives this process, where it can be told, and what that means for a policy.

A server's integration says it at start (`tell_threads`). Without one, the first request is asked: what servers put into
the environ leads to their settings. Nothing is imported for it, and a server that is made otherwise is one that does not
tell.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import TYPE_CHECKING, Any
from weakref import WeakSet

from resilient_mw.admission.config import ServerPolicy
from resilient_mw.core.errors import ResilienceWarning
from resilient_mw.runtime.protection import Protection

if TYPE_CHECKING:
    from wsgiref.types import WSGIEnvironment

Told = tuple[int, str]
"""A number of threads, and who says so."""

WAITED = "resilient_mw.waited"
"""The key of an environ under which a server's integration says how many seconds a request stood before the threads."""
SYNC = "gunicorn's sync worker"

logger = logging.getLogger("resilient_mw")

_known: WeakSet[Protection] = WeakSet()
_unjudged: WeakSet[Protection] = WeakSet()  # those that have not been judged yet
_told: list[Told] = []


def asks_for_threads(protection: Protection) -> None:
    """Have an application's policy judged by the number of threads as soon as somebody tells it."""
    _unjudged.add(protection)
    _known.add(protection)


def wsgi_policies() -> list[ServerPolicy]:
    """Return the policies of the WSGI applications that this process protects."""
    return [guard.policy for guard in {each.guard: None for each in _known}]


def tell_threads(count: int, source: str) -> None:
    """Say how many threads work on requests in this process, before the first of them comes.

    Args:
        count: the threads.
        source: who says so, for a reader.

    Raises:
        ResilienceWarning: they do not suffice, and the user made warnings errors.
    """
    _told[:] = [(count, source)]
    for protection in list(_unjudged):
        judge(protection, (count, source))


def ask_server(protection: Protection, environ: WSGIEnvironment, start_response: object) -> None:
    """Judge a policy by what its server tells, before the first request; once.

    Raises:
        ResilienceWarning: the threads do not suffice, and the user made warnings errors.
    """
    judge(protection, _told[0] if _told else found(environ, start_response))


def judge(protection: Protection, told: Told | None) -> None:
    """Take the number of threads into the policy unless it says one itself, and complain if they do not suffice.

    Applications under the same policy are one: it is judged once.
    """
    if protection not in _unjudged:
        return
    policy = protection.policy
    for each in list(_unjudged):
        if each.guard is protection.guard:
            _unjudged.discard(each)
    if policy.threads is not None:
        source = "the policy"
    elif told is None:
        return
    else:
        threads, source = told
        policy = policy.reload(threads=threads)
    needs = policy.thread_sum
    if needs is None:
        return
    if policy.queue_length < needs.queue:
        logger.info("%s: %s", policy.name, needs.told(source))
    complaint = needs.complaint(source, fitted=policy.fit_queue)
    if complaint is not None:
        logger.warning("%s: %s", policy.name, complaint)
        warnings.warn(complaint, ResilienceWarning, stacklevel=2)


def found(environ: WSGIEnvironment, start_response: object) -> Told | None:
    """Return what a server tells by the first request; None if it does not."""
    software = str(environ.get("SERVER_SOFTWARE", ""))
    if software.startswith("gunicorn/"):
        return of_gunicorn(environ, start_response)
    if "waitress.client_disconnected" in environ:
        return of_waitress(environ)
    if software == "Granian":
        return of_granian(sys.argv, os.environ)
    if "mod_wsgi.process_group" in environ:
        return of_mod_wsgi()
    return None


def of_gunicorn(environ: WSGIEnvironment, start_response: object) -> Told | None:
    """Return what gunicorn's settings say, which its `start_response` knows, if no other layer stands before it."""
    if environ.get("wsgi.multithread") is False:
        return 1, SYNC
    return of_gunicorn_settings(getattr(getattr(start_response, "__self__", None), "cfg", None))


def of_gunicorn_settings(settings: object) -> Told | None:
    """Return what the settings of a gunicorn worker say; a worker with greenlets has no such number."""
    worker = str(getattr(settings, "worker_class_str", ""))
    if worker == "gthread" or worker.endswith("ThreadWorker"):
        return _counted(getattr(settings, "threads", None), "gunicorn (--threads)")
    return (1, SYNC) if worker == "sync" or worker.endswith("SyncWorker") else None


def of_waitress(environ: WSGIEnvironment) -> Told | None:
    """Return what waitress's settings say, which the channel of the request knows."""
    channel = getattr(environ["waitress.client_disconnected"], "__self__", None)
    return _counted(getattr(getattr(channel, "adj", None), "threads", None), "waitress (threads)")


def of_granian(arguments: Sequence[str], variables: Mapping[str, str]) -> Told | None:
    """Return what granian's command line or its environment variables say; nothing is known of one that a program made.

    More requests than `--backpressure` are not taken in. Without `--blocking-threads` there are half as many threads as
    that.
    """
    path = PurePath(arguments[0]) if arguments else PurePath()
    if path.stem != "granian" and path.parts[-2:] != ("granian", "__main__.py"):
        return None

    def option(name: str, default: int) -> int:
        text = variables.get(f"GRANIAN_{name.upper().replace('-', '_')}", "")
        for place, argument in enumerate(arguments):
            if argument == f"--{name}":
                text = arguments[place + 1] if place + 1 < len(arguments) else ""
            elif argument.startswith(f"--{name}="):
                text = argument.partition("=")[2]
        return int(text) if text.isascii() and text.isdigit() else default

    taken_in = option("backpressure", 0) or max(1, option("backlog", 1024) // max(1, option("workers", 1)))
    threads = option("blocking-threads", 0)
    if not threads:
        return _counted(max(1, taken_in // 2), "granian (no --blocking-threads: half of --backpressure)")
    return _counted(min(threads, taken_in), "granian (--blocking-threads, --backpressure)")


def of_mod_wsgi() -> Told | None:
    """Return what the module says that mod_wsgi puts into its processes."""
    return _counted(getattr(sys.modules.get("mod_wsgi"), "threads_per_process", None), "mod_wsgi (threads)")


def _counted(threads: Any, source: str) -> Told | None:
    return (threads, source) if isinstance(threads, int) and threads >= 1 else None

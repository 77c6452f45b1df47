"""Processes that use one store of idempotency keys at the same time."""

from __future__ import annotations

import os
import subprocess
import sys

PRELUDE = """
import os, sys, threading
import resilient_mw
from resilient_mw.idempotency import Begun, Claim, StoredAnswer
from {module} import {name}
store = {name}(sys.argv[1])
def claim(number, **facts):
    return Claim(record=f"{{number:064x}}", token=f"{{os.getpid()}}-{{number}}", **facts)
"""
RACE = """
store.create()
print("ready", flush=True)
sys.stdin.readline()
print(*(number for number in range(40) if isinstance(store.begin(claim(number), timeout=60), Begun)))
"""
HOLD = """
store.create()
print(type(store.begin(claim(1, lease=float(sys.argv[2])), timeout=60)).__name__, flush=True)
sys.stdin.readline()
"""
FORK = """
store.create()
store.begin(claim(1))
child = os.fork()
if child == 0:
    own = isinstance(store.begin(claim(2), timeout=60), Begun)
    own = own and all(store.renew(claim(2), timeout=60) for _ in range(50))
    store.close()
    os._exit(0 if own else 3)
fine = all(store.renew(claim(1), timeout=60) for _ in range(50))
print(os.waitpid(child, 0)[1], fine, store.complete(claim(1), StoredAnswer(200), timeout=60))
store.close()
"""


def start(script: str, store: type, server: str, *arguments: str) -> subprocess.Popen[str]:
    prelude = PRELUDE.format(module=store.__module__, name=store.__name__)
    command = [sys.executable, "-c", prelude + script, server, *arguments]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def won_in_a_race(store: type, server: str) -> list[int]:
    """Return which of forty keys was begun, once for each process of four that has begun it."""
    processes = [start(RACE, store, server) for _ in range(4)]
    try:
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
        texts = []
        for process in processes:
            assert process.stdin is not None
            process.stdin.write("go\n")
            process.stdin.flush()
        texts = [process.communicate(timeout=120)[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.communicate()
    return sorted(int(number) for text in texts for number in text.split())


def killed_while_it_held(store: type, server: str, lease: float) -> str:
    """Have a process begin key 1 and kill it then; return what it was told."""
    process = start(HOLD, store, server, str(lease))
    try:
        assert process.stdout is not None
        return process.stdout.readline().strip()
    finally:
        process.kill()
        process.communicate()


def forked(store: type, server: str) -> list[str]:
    """Have a process and its child use one store; return the child's status, and two answers of its parent."""
    process = start(FORK, store, server)
    try:
        return process.communicate(timeout=120)[0].split()
    finally:
        process.kill()
        process.communicate()

"""A drain at a signal: who gets the signal afterwards, and when. Each in a process of its own."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading

import pytest

from resilient_mw import ServerPolicy
from resilient_mw.runtime.guard import guard_of

PRELUDE = """
import asyncio, os, signal, threading, time
from resilient_mw import ServerPolicy
from resilient_mw.runtime.guard import guard_of
policy = ServerPolicy(drain_delay=0.3)
guard = guard_of(policy)
began = time.monotonic()
def say(*what):
    print(*what, flush=True)
def term():
    global began
    began = time.monotonic()
    os.kill(os.getpid(), signal.SIGTERM)
def server(number, frame=None):
    say("server", number == signal.SIGTERM, guard.controller.draining, round(time.monotonic() - began, 1) >= 0.3)
"""


def _run(script: str, delay: float = 0.3) -> tuple[list[str], int]:
    prelude = PRELUDE.replace("drain_delay=0.3", f"drain_delay={delay}")
    done = subprocess.run(
        [sys.executable, "-c", prelude + script], capture_output=True, text=True, timeout=60, check=False
    )
    assert not done.stderr, done.stderr
    return done.stdout.splitlines(), done.returncode


def test_a_handler_that_is_a_function_is_called_after_the_delay() -> None:
    said, status = _run("""
signal.signal(signal.SIGTERM, server)
policy.drain_on_signal()
policy.drain_on_signal()  # once is enough
term()
say(guard.controller.draining)
time.sleep(1.6)
""")
    assert (said, status) == (["True", "server True True True"], 0)


@pytest.mark.parametrize("loop", ["asyncio.new_event_loop", "__import__('uvloop').new_event_loop"])
def test_a_handler_of_an_event_loop_is_called_after_the_delay(loop: str) -> None:
    if "uvloop" in loop:
        pytest.importorskip("uvloop")
    said, status = _run(
        f"""
async def main():
    loop = asyncio.get_running_loop()
    other = asyncio.Event()
    loop.add_signal_handler(signal.SIGTERM, server, signal.SIGTERM)
    loop.add_signal_handler(signal.SIGUSR1, other.set)
    policy.drain_on_signal()
    term()
    await asyncio.sleep(0.1)
    say(guard.controller.draining)
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(other.wait(), 5)
    say("others at once", time.monotonic() - began < 1.4)
    await asyncio.sleep(2.2)
with asyncio.Runner(loop_factory={loop}) as runner:
    runner.run(main())
""",
        delay=1.5,
    )
    assert (said, status) == (["True", "others at once True", "server True True True"], 0)


def test_a_handler_that_a_server_puts_over_it_after_the_start_up_is_called_too() -> None:
    said, _ = _run("""
async def main():
    policy.drain_on_signal()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, server, signal.SIGTERM)
    await asyncio.sleep(1.3)
    term()
    await asyncio.sleep(1.6)
asyncio.run(main())
""")
    assert said == ["server True True True"]


def test_without_a_handler_the_process_ends_as_it_would() -> None:
    said, status = _run("""
policy.drain_on_signal()
term()
time.sleep(0.1)
say(guard.controller.draining)
time.sleep(10)
""")
    assert (said, status) == (["True"], -signal.SIGTERM)


def test_two_policies_drain_at_once_and_the_server_waits_for_the_longer_delay() -> None:
    said, _ = _run("""
signal.signal(signal.SIGTERM, server)
other = ServerPolicy(drain_delay=0.0)
guard_of(other)
other.drain_on_signal()
policy.drain_on_signal()
term()
say(guard.controller.draining, guard_of(other).controller.draining)
time.sleep(1.6)
""")
    assert said == ["True True", "server True True True"]


def test_another_signal_may_be_named() -> None:
    said, _ = _run("""
signal.signal(signal.SIGUSR2, lambda number, frame: say("passed on"))
policy.drain_on_signal(signal.SIGUSR2)
os.kill(os.getpid(), signal.SIGUSR2)
say(guard.controller.draining)
time.sleep(1.6)
""")
    assert said == ["True", "passed on"]


def test_a_forked_child_has_the_handler_that_was_there_before() -> None:
    said, _ = _run("""
signal.signal(signal.SIGTERM, server)
policy.drain_on_signal()
child = os.fork()
if not child:
    term()
    time.sleep(0.1)
    os._exit(0)
os.waitpid(child, 0)
say(guard.controller.draining)
""")
    assert said == ["server True False False", "False"]


def test_only_the_main_thread_may_install_it() -> None:
    policy = ServerPolicy()
    guard_of(policy)
    raised: list[BaseException] = []

    def install() -> None:
        try:
            policy.drain_on_signal()
        except ValueError as error:
            raised.append(error)

    thread = threading.Thread(target=install)
    thread.start()
    thread.join()
    assert "main thread" in str(raised[0])

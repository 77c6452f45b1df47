"""Six calls to a dependency that falls ill: retry, last good answer, open circuit, recovery.

python examples/six_calls.py      needs: pip install "resilient-mw[httpx]"

Starts a price service in a thread, tells it what to answer, prints what one client made of it, and ends.
"""

import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx

from resilient_mw import BreakerPolicy, Dependency, RetryPolicy
from resilient_mw.calls import Fallback
from resilient_mw_integrations.httpx import ResilientTransport

script: list[int] = []  # statuses of the next answers; then 200


class Prices(BaseHTTPRequestHandler):
    """The price service."""

    asked = 0

    def do_GET(self) -> None:
        Prices.asked += 1
        self.send_response(script.pop(0) if script else 200)
        self.send_header("Content-Length", "4")
        self.end_headers()
        self.wfile.write(b"9.50")

    def log_message(self, *_: object) -> None:
        """Say nothing."""


def call(client: httpx.Client, url: str, what: str) -> None:
    """Make one call and print what became of it."""
    before, began = Prices.asked, time.monotonic()
    answer = client.get(url)
    took = 1000 * (time.monotonic() - began)
    mark = answer.headers.get("X-Degraded", "fresh")
    print(f"{what:<36} {answer.status_code}  {mark:<6} {Prices.asked - before} asked  {took:>4.0f} ms")


def main() -> None:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Prices)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    url = f"http://127.0.0.1:{server.server_port}"
    prices = Dependency(
        "prices",
        match=f"{url}/*",
        timeout=1.0,
        bulkhead=10,
        retry=RetryPolicy(attempts=2),
        breaker=BreakerPolicy(minimum_calls=4, open_for=0.5, trials=1),
        fallback=Fallback(stale_for=60),
    )
    with httpx.Client(transport=ResilientTransport([prices])) as client:
        call(client, f"{url}/tea", "1. all is well")
        script[:] = [503]
        call(client, f"{url}/tea", "2. one answer fails: asked again")
        script[:] = [503] * 9
        call(client, f"{url}/tea", "3. it fails, and the circuit opens")
        call(client, f"{url}/tea", "4. it is open: nothing is sent")
        time.sleep(0.6)  # open_for, and up to a tenth
        script.clear()
        call(client, f"{url}/tea", "5. well again: one trial closes it")
        call(client, f"{url}/tea", "6. as before")
    changes = " -> ".join(change.after for change in prices.snapshot().recent_transitions)
    print(f"\ncircuit: closed -> {changes}")
    server.shutdown()
    server.server_close()


if __name__ == "__main__":
    main()

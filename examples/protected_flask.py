"""A protected Flask service.

python examples/protected_flask.py [port]      needs: pip install "resilient-mw[flask]" waitress

Then, in another terminal:
    curl -i localhost:8000/checkout
    for i in $(seq 20); do curl -s -o /dev/null -w "%{http_code} " localhost:8000/report & done; wait
"""

import sys
import time

import waitress
from flask import Flask

from resilient_mw import ServerPolicy, current, priority
from resilient_mw.wsgi import ResilienceMiddleware

policy = ServerPolicy(limit=4, queue=4, name="shop")
app = Flask(__name__)
app.wsgi_app = ResilienceMiddleware(app.wsgi_app, policy)  # type: ignore[method-assign]


@app.get("/checkout")
@priority("critical")
def checkout() -> dict[str, float]:
    time.sleep(0.05)
    return {"seconds_left": current().remaining()}


@app.get("/report")
@priority("sheddable")
def report() -> dict[str, int]:
    for _ in range(10):
        current().check()  # a thread cannot be interrupted: it has to look
        time.sleep(0.1)
    return {"rows": 42}


@app.get("/health")
def health() -> dict[str, bool]:
    return {"ok": True}


if __name__ == "__main__":
    # threads >= limit + queue + a few that answer health checks and refuse
    waitress.serve(app, host="127.0.0.1", port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000, threads=12)

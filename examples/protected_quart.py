"""A protected Quart service.

python examples/protected_quart.py [port]      needs: pip install "resilient-mw[quart]" hypercorn

Then, in another terminal:
    curl -i localhost:8000/checkout
    curl -i -H "X-Request-Timeout-Ms: 100" localhost:8000/report       504 after 100 ms
    for i in $(seq 20); do curl -s -o /dev/null -w "%{http_code} " localhost:8000/report & done; wait
"""

import asyncio
import sys

from hypercorn.asyncio import serve
from hypercorn.config import Config
from quart import Blueprint, Quart

from resilient_mw import current, priority
from resilient_mw_integrations.quart import Resilience

app = Quart(__name__)
app.config.from_mapping(RESILIENCE_LIMIT=4, RESILIENCE_QUEUE=4, RESILIENCE_NAME="shop")
reports = priority("sheddable")(Blueprint("reports", __name__))


@app.get("/checkout")
@priority("critical")
async def checkout() -> dict[str, float]:
    await asyncio.sleep(0.05)
    return {"seconds_left": current().remaining()}


@reports.get("/report")
async def report() -> dict[str, int]:
    await asyncio.sleep(1)  # cancelled at the deadline, and when the caller leaves
    return {"rows": 42}


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"ok": True}


app.register_blueprint(reports)
Resilience(app)

if __name__ == "__main__":
    config = Config()
    config.bind = [f"127.0.0.1:{sys.argv[1] if len(sys.argv) > 1 else 8000}"]
    asyncio.run(serve(app, config))

"""A protected Litestar service.

python examples/protected_litestar.py [port]      needs: pip install "resilient-mw[litestar]" uvicorn

Then, in another terminal:
    curl -i localhost:8000/checkout
    curl -i -H "X-Request-Timeout-Ms: 100" localhost:8000/report       504 after 100 ms
    for i in $(seq 20); do curl -s -o /dev/null -w "%{http_code} " localhost:8000/report & done; wait
"""

import asyncio
import sys

import uvicorn
from litestar import Litestar, Router, get

from resilient_mw import current, priority
from resilient_mw_integrations.litestar import ResiliencePlugin, marked


@get("/checkout")
@priority("critical")
async def checkout() -> dict[str, float]:
    return {"seconds_left": current().remaining()}


@get("/report")
async def report() -> dict[str, int]:
    await asyncio.sleep(1)
    return {"rows": 42}


@get("/health")
async def health() -> dict[str, bool]:
    return {"ok": True}


reports = Router("/", route_handlers=[report], opt=marked(priority="sheddable"))
app = Litestar([checkout, reports, health], plugins=[ResiliencePlugin(limit=4, queue=4, name="shop")])

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)

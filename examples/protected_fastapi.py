"""A protected FastAPI service.

python examples/protected_fastapi.py [port]      needs: pip install "resilient-mw[fastapi,prometheus]" uvicorn

Then, in another terminal:
    curl -i localhost:8000/checkout
    curl -i -H "X-Request-Timeout-Ms: 100" localhost:8000/report       504 after 100 ms
    for i in $(seq 20); do curl -s -o /dev/null -w "%{http_code} " localhost:8000/report & done; wait
    curl localhost:8000/openapi.json                                  what each operation may be answered
    curl localhost:8000/metrics/
"""

import asyncio
import sys
import time

import uvicorn
from fastapi import FastAPI
from prometheus_client import make_asgi_app

from resilient_mw import ServerPolicy, exempt, priority
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw_integrations.fastapi import CurrentBudget, document_refusals
from resilient_mw_integrations.prometheus import install

app = FastAPI()
app.add_middleware(ResilienceMiddleware, policy=ServerPolicy(limit=4, queue=4, name="shop"))
document_refusals(app)
install()


@app.get("/checkout")
@priority("critical")
def checkout(left: CurrentBudget) -> dict[str, float]:
    time.sleep(0.05)
    return {"seconds_left": left}


@app.get("/report")
@priority("sheddable")
async def report() -> dict[str, int]:
    await asyncio.sleep(1)
    return {"rows": 42}


@app.get("/health")
async def health() -> dict[str, bool]:
    return {"ok": True}


app.mount("/metrics", exempt(make_asgi_app()))

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)

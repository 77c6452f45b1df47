"""A protected ASGI application without a framework: rules by path, and a page that is prepared once.

python examples/protected_asgi.py [port]      needs: pip install resilient-mw uvicorn

Then, in another terminal:
    curl -i localhost:8000/checkout
    curl -i -H "X-Request-Timeout-Ms: 100" localhost:8000/report       504 after 100 ms
    curl -i -H "X-Request-Timeout-Ms: 100" -H "Accept: text/html" localhost:8000/report
    for i in $(seq 20); do curl -s -o /dev/null -w "%{http_code} " localhost:8000/report & done; wait
"""

import asyncio
import json
import sys
from typing import Any

import uvicorn

from resilient_mw import RouteRule, ServerPolicy, current
from resilient_mw.asgi import ResilienceMiddleware
from resilient_mw.core.pages import PreparedPages, RefusalPage, RefusedRequest


async def shop(scope: Any, receive: Any, send: Any) -> None:
    if scope["type"] != "http":
        raise NotImplementedError(scope["type"])  # the server then does without lifespan and websockets
    answer: dict[str, Any] = {"ok": True}
    if scope["path"] == "/checkout":
        answer = {"seconds_left": current().remaining()}
    elif scope["path"] == "/report":
        await asyncio.sleep(1)
        answer = {"rows": 42}
    body = json.dumps(answer).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


def page(refused: RefusedRequest) -> RefusalPage | None:
    return RefusalPage(f"<h1>{refused.title}</h1>") if refused.wants_html else None


policy = ServerPolicy(
    limit=4,
    queue=4,
    name="shop",
    routes=[RouteRule("/checkout", priority="critical"), RouteRule("/report", priority="sheddable")],
    refusal_page=PreparedPages(page),
)
app = ResilienceMiddleware(shop, policy)

if __name__ == "__main__":
    uvicorn.run(app, port=int(sys.argv[1]) if len(sys.argv) > 1 else 8000)

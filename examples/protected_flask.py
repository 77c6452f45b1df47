"""A protected Flask service.

python examples/protected_flask.py [port]      needs: pip install "resilient-mw[flask]" waitress

Then, in another terminal:
    curl -i localhost:8000/checkout
    for i in $(seq 20); do curl -s -o /dev/null -w "%{http_code} " localhost:8000/report & done; wait
    flask --app examples/protected_flask.py resilience
"""

import sys
import time

import waitress
from flask import Blueprint, Flask, request
from flask.typing import ResponseReturnValue
from werkzeug.exceptions import HTTPException

from resilient_mw import current, priority
from resilient_mw_integrations.flask import Resilience

resilience = Resilience(error_pages=True)
reports = priority("sheddable")(Blueprint("reports", __name__))


@reports.get("/report")
def report() -> ResponseReturnValue:
    for _ in range(10):
        current().check()  # a thread cannot be interrupted: it has to look
        time.sleep(0.1)
    return {"rows": 42}


def unavailable(error: HTTPException) -> ResponseReturnValue | HTTPException:
    """Draw refusals for people; programs get the problem document."""
    if request.accept_mimetypes.best_match(["application/json", "text/html"]) != "text/html":
        return error
    return f"<h1>{error.description}</h1><p>Please come back in a moment.</p>", error.code or 503


def create_app() -> Flask:
    app = Flask(__name__)
    app.config.from_mapping(RESILIENCE_LIMIT=4, RESILIENCE_QUEUE=4, RESILIENCE_NAME="shop")
    app.config.from_prefixed_env()  # FLASK_RESILIENCE_LIMIT=8
    app.register_blueprint(reports)
    app.register_error_handler(503, unavailable)

    @app.get("/checkout")
    @priority("critical")
    def checkout() -> ResponseReturnValue:
        time.sleep(0.05)
        return {"seconds_left": current().remaining()}

    @app.get("/health")
    def health() -> ResponseReturnValue:
        return {"ok": True}

    resilience.init_app(app)
    return app


if __name__ == "__main__":
    # threads >= limit + queue + a few that answer health checks and refuse
    port = int(sys.argv[1]) if len(sys.argv) > 1 else 8000
    waitress.serve(create_app(), host="127.0.0.1", port=port, threads=12)

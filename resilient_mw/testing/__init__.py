"""Help for the tests of those who use the package: a clock that moves by hand, scripted servers, an off switch.

Example:
    def test_the_answer_comes_too_late():
        clock = ManualClock()
        policy = ServerPolicy(deadline_default=2.0)
        use_clock(policy, clock)

        def slow(environ, start_response):
            clock.advance(3.0)
            start_response("200 OK", [])
            return [b"done"]

        assert ScriptedWSGI(ResilienceMiddleware(slow, policy)).run().status == "504 Gateway Timeout"

Werkzeug's test client, and so Flask's, leaves a response open until it is closed, and an open response holds its slot:
use `with client.get(...) as response`, or `client.get(..., buffered=True)`.

With pytest, the fixtures `manual_clock` and `resilience_disabled` are there without an import.
"""

from resilient_mw.testing.clock import ManualClock, use_clock
from resilient_mw.testing.off import disabled
from resilient_mw.testing.scripted_asgi import ScriptedASGI
from resilient_mw.testing.scripted_wsgi import ScriptedWSGI, StartCall

__all__ = ["ManualClock", "ScriptedASGI", "ScriptedWSGI", "StartCall", "disabled", "use_clock"]

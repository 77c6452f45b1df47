"""Cross-origin requests of browsers: who may read a refusal, and which requests only ask whether they may be sent.

A browser hides an answer from the page unless the answer names the page's origin. A refusal that is made outside the
application's CORS layer does not pass through it, so it has to say this itself.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from resilient_mw.core.checks import require_flag
from resilient_mw.core.rejection import REFUSAL_HEADER

ANYBODY = "*"
PREFLIGHT = ("origin", "access-control-request-method")
"""Lower-case names of the fields that make an OPTIONS request a preflight (Fetch standard, 3.3.2)."""
PREFLIGHT_LABEL = "preflight"
"""The route label of all preflights."""

EXPOSED = ("Access-Control-Expose-Headers", f"Retry-After, {REFUSAL_HEADER}")
_ORIGIN = re.compile(r"[a-z][a-z0-9+.-]*://(?:\[[0-9a-f:.]+\]|[a-z0-9._-]+)(?::[0-9]{1,5})?")
_USUAL_PORTS = {"http": ":80", "https": ":443"}


class Cors:
    """The origins whose pages may read refusals.

    Args:
        origins: exact origins as browsers send them, such as `"https://shop.example"`, or `"*"` for all.
        credentials: whether answers to requests with cookies may be read as well.

    Raises:
        ValueError: naming the field, the value and what is allowed.

    Attributes:
        always: header lines of every refusal.
        by_origin: header lines by the value of `Origin`. Only what the policy names is ever sent back.
        vary: the value of `Vary`.
    """

    __slots__ = ("always", "by_origin", "vary")

    def __init__(self, origins: Sequence[str] = (), credentials: object = False) -> None:
        named = _checked(origins, credentials)
        self.always: tuple[tuple[str, str], ...] = ()
        self.by_origin: dict[str, tuple[tuple[str, str], ...]] = {}
        self.vary = "Accept"
        if named == (ANYBODY,):
            self.always = (("Access-Control-Allow-Origin", ANYBODY), EXPOSED)
        elif named:
            self.vary = "Accept, Origin"
            allowed = (("Access-Control-Allow-Credentials", "true"),) if credentials else ()
            for origin in named:
                self.by_origin[origin] = (("Access-Control-Allow-Origin", origin), *allowed, EXPOSED)


def _checked(origins: object, credentials: object) -> tuple[str, ...]:
    require_flag("cors_credentials", credentials)
    named = (origins,) if origins == ANYBODY else origins
    if isinstance(named, (str, bytes)) or not isinstance(named, Sequence):
        raise ValueError(
            f"cors_origins={origins!r} is not allowed: it must be '*' or a sequence of origins such as "
            "['https://shop.example']"
        )
    if ANYBODY in named:
        if len(named) > 1:
            raise ValueError(f"cors_origins={origins!r} is not allowed: '*' must stand alone")
        if credentials:
            raise ValueError(
                "cors_credentials=True is not allowed with cors_origins='*': browsers take that for a mistake. "
                "Name the origins"
            )
        return (ANYBODY,)
    if credentials and not named:
        raise ValueError("cors_credentials=True is not allowed without cors_origins: name the origins")
    for origin in named:
        scheme = origin.partition(":")[0] if isinstance(origin, str) else ""
        if (
            not isinstance(origin, str)
            or not _ORIGIN.fullmatch(origin)
            or origin.endswith(_USUAL_PORTS.get(scheme, "/"))
        ):
            raise ValueError(
                f"cors_origins={origin!r} is not allowed: it must be an origin as browsers send it, scheme and host in "
                "lower case, the port only if it is not the scheme's own, no path: 'https://shop.example'"
            )
    return tuple(named)

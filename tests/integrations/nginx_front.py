"""An nginx in front of a service, as a process of the tests' own."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.integrations.fronts import nginx_command, running

SETTINGS = """
    limit_req_zone $binary_remote_addr zone=one:32k rate=1r/m;
    server {{
        listen 127.0.0.1:{port};
        keepalive_requests 3;
        location / {{
            proxy_pass http://127.0.0.1:{behind};
            proxy_set_header X-Request-Start "t=${{msec}}";
            proxy_read_timeout 500ms;
            proxy_next_upstream off;
        }}
        location /nobody/ {{ proxy_pass http://127.0.0.1:{closed}; }}
        location /small/ {{ client_max_body_size 1k; proxy_pass http://127.0.0.1:{behind}; }}
        location /limited/ {{ limit_req zone=one; proxy_pass http://127.0.0.1:{behind}; }}
        location /elsewhere {{ return 307 {elsewhere}; }}
    }}
"""


@contextmanager
def nginx(folder: Path, behind: int, elsewhere: str = "http://127.0.0.1/") -> Iterator[str]:
    """Run nginx in front of a port of this machine; yield the beginning of its URLs.

    `/nobody/` leads to a port on which nobody listens, `/small/` takes 1 KiB, `/limited/` one request a minute, and
    `/elsewhere` redirects. After three requests it closes a connection, and it waits 0.5 s for an answer.
    """
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, closed = one.getsockname()[1], other.getsockname()[1]
    settings = SETTINGS.format(port=port, behind=behind, closed=closed, elsewhere=elsewhere)
    with running(nginx_command(folder, settings), port, folder / "nginx.log"):
        yield f"http://127.0.0.1:{port}"

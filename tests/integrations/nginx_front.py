"""An nginx in front of a service, as a process of the tests' own."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin:/usr/local/sbin")

CONF = """
daemon off;
master_process off;
pid {folder}/pid;
error_log {folder}/error.log;
events {{ worker_connections 256; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
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
}}
"""


@contextmanager
def nginx(folder: Path, behind: int, elsewhere: str = "http://127.0.0.1/") -> Iterator[str]:
    """Run nginx in front of a port of this machine; yield the beginning of its URLs.

    `/nobody/` leads to a port on which nobody listens, `/small/` takes 1 KiB, `/limited/` one request a minute, and
    `/elsewhere` redirects. After three requests it closes a connection, and it waits 0.5 s for an answer.
    """
    assert NGINX is not None
    with socket.create_server(("127.0.0.1", 0)) as one, socket.create_server(("127.0.0.1", 0)) as other:
        port, closed = one.getsockname()[1], other.getsockname()[1]
    conf = folder / "nginx.conf"
    conf.write_text(CONF.format(folder=folder, port=port, behind=behind, closed=closed, elsewhere=elsewhere))
    process = subprocess.Popen(
        [NGINX, "-p", str(folder), "-c", str(conf), "-e", str(folder / "error.log")],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        _wait_for(port, process)
        yield f"http://127.0.0.1:{port}"
    finally:
        process.kill()
        process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 20
    while True:
        try:
            with socket.create_connection(("127.0.0.1", port), timeout=1):
                return
        except OSError:
            assert process.poll() is None, "nginx has ended"
            assert time.monotonic() < end, "nginx does not answer"
            time.sleep(0.02)

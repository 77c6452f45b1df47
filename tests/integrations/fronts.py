"""The proxies of docs/in-front.md, run with the page's own settings in front of two services."""

from __future__ import annotations

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.docs.pages import ROOT, code_blocks

PAGE = ROOT / "docs" / "in-front.md"
NGINX_MAIN = """
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
{settings}
}}
"""


def _found(name: str) -> str:
    found = shutil.which(name) or shutil.which(name, path="/usr/sbin:/usr/local/sbin")
    assert found, f"{name} is not installed"
    return found


def _with_ports(settings: str, own: int, first: int, second: int) -> str:
    """Put this run's ports where the page has its own."""
    for pattern, port in (
        (r"127\.0\.0\.1:8000", f"127.0.0.1:{first}"),
        (r"127\.0\.0\.1:8001", f"127.0.0.1:{second}"),
        (r"listen 80;", f"listen 127.0.0.1:{own};"),
        (r"bind :80\b", f"bind 127.0.0.1:{own}"),
    ):
        settings = re.sub(pattern, port, settings)
    assert f":{own}" in settings
    assert f":{first}" in settings
    return settings


def nginx_command(folder: Path, settings: str) -> list[str]:
    """Write a configuration whose `http` block has these settings, and return what runs nginx with it."""
    conf = folder / "nginx.conf"
    conf.write_text(NGINX_MAIN.format(folder=folder, settings=settings))
    return [_found("nginx"), "-p", str(folder), "-c", str(conf), "-e", str(folder / "error.log")]


def _haproxy_command(folder: Path, settings: str) -> list[str]:
    conf = folder / "haproxy.cfg"
    conf.write_text(settings)
    return [_found("haproxy"), "-db", "-f", str(conf)]


COMMANDS = {"nginx": nginx_command, "haproxy": _haproxy_command}


@contextmanager
def running(command: list[str], port: int, log: Path) -> Iterator[None]:
    """Run a proxy until the end of the block, which begins when it listens."""
    with log.open("wb") as stream:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=stream, stderr=stream)
    try:
        end = time.monotonic() + 20
        while True:
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                assert process.poll() is None, log.read_text()
                assert time.monotonic() < end, log.read_text()
                time.sleep(0.02)
        yield
    finally:
        process.kill()
        process.wait()


@contextmanager
def front(name: str, folder: Path, first: int, second: int) -> Iterator[int]:
    """Run a proxy, by the name of its block on the page, in front of two ports of this machine; yield its port."""
    with socket.create_server(("127.0.0.1", 0)) as one:
        own = one.getsockname()[1]
    (block,) = code_blocks(PAGE, name)
    command = COMMANDS[name](folder, _with_ports(block, own, first, second))
    with running(command, own, folder / f"{name}.log"):
        yield own

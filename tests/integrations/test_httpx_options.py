"""What the default inner transport can be told, and that it is heard."""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from resilient_mw.calls.dependency import Dependency
from resilient_mw.runtime.context import current
from tests.integrations.httpx_wires import Wire, every_wire
from tests.transport.tcp_server import Connection, RawServer, head

URL = "http://prices.test"


def answers(connection: Connection) -> None:
    while connection.request():
        connection.answer()


@every_wire
def test_a_unix_socket(wire: Wire, tmp_path: Path) -> None:
    path = tmp_path / "s"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()

        def serve() -> None:
            sock, _ = listener.accept()
            with sock:
                sock.recv(65_536)
                sock.sendall(head(200, 2) + b"ok")
                while sock.recv(65_536):
                    pass

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        wire.open([Dependency("prices", match=f"{URL}/*", retry=None)], uds=str(path))
        assert wire.get(f"{URL}/").content == b"ok"
        with current().within(0.1), pytest.raises(wire.lib.TimeoutException) as caught:
            wire.get(f"{URL}/")
        assert getattr(caught.value, "phase", None) == "head"
        wire.run(wire.client.aclose() if wire.is_async else wire.client.close())
        thread.join(2)


@every_wire
def test_the_own_address_and_socket_options(wire: Wire) -> None:
    with RawServer(answers) as server:
        options = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)]
        wire.open(
            [Dependency("prices", match=f"{server.url}/*")],
            local_address="127.0.0.5",
            socket_options=options,
            limits=wire.lib.Limits(max_keepalive_connections=1, keepalive_expiry=30.0),
        )
        response = wire.send("GET", server.url + "/")
        stream: Any = response.extensions["network_stream"]
        assert stream.get_extra_info("client_addr")[0] == "127.0.0.5"
        sock = stream.get_extra_info("socket")
        assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) == 40_000  # Linux counts double.
        wire.close(response)


@every_wire
def test_certificates_are_verified_unless_told_otherwise(wire: Wire, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[dict[str, Any]] = []
    real = wire.lib.create_ssl_context

    def create(**keywords: Any) -> ssl.SSLContext:
        made.append(keywords)
        context: ssl.SSLContext = real(**{**keywords, "verify": False, "cert": None})
        return context

    monkeypatch.setattr(wire.lib, "create_ssl_context", create)
    wire.transport_class([], trust_env=False)
    wire.transport_class([], verify="ca.pem", cert="own.pem")
    assert made == [
        {"verify": True, "cert": None, "trust_env": False},
        {"verify": "ca.pem", "cert": "own.pem", "trust_env": True},
    ]


@every_wire
def test_a_proxy_with_a_password_and_headers(wire: Wire) -> None:
    with RawServer(answers) as server:
        proxy = wire.lib.Proxy(server.url, auth=("user", "secret"), headers={"X-Proxy": "1"})
        wire.open([Dependency("prices", match=f"{URL}/*")], proxy=proxy)
        assert wire.get(f"{URL}/").status_code == 200
        (request,) = server.requests
        assert request.all("proxy-authorization") == ["Basic dXNlcjpzZWNyZXQ="]
        assert request.all("x-proxy") == ["1"]


@every_wire
def test_a_socks_proxy_is_spoken_to(wire: Wire) -> None:
    pytest.importorskip("socksio")

    def socks(connection: Connection) -> None:
        connection.sock.recv(100)
        connection.sock.sendall(b"\x05\x00")
        connection.sock.recv(300)
        connection.sock.sendall(b"\x05\x00\x00\x01\x00\x00\x00\x00\x00\x00")
        answers(connection)

    with RawServer(socks) as server:
        wire.open([Dependency("prices", match=f"{URL}/*")], proxy=server.url.replace("http:", "socks5:"))
        assert wire.get(f"{URL}/").status_code == 200


@every_wire
def test_an_unbounded_pool_has_no_gate(wire: Wire) -> None:
    wire.open([], limits=wire.lib.Limits(max_connections=None))
    assert not hasattr(wire.transport._inner, "inner")

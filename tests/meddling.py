"""An HTTP proxy before a real S3 server that changes what passes: faults that no server offers by itself."""

from __future__ import annotations

import http.client
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.servers import Server


@dataclass(slots=True)
class Exchange:
    """A request that was forwarded, and its answer, which a test may change."""

    method: str
    path: str
    status: int
    headers: dict[str, str]
    body: bytes
    sent: dict[str, str] = field(default_factory=dict)
    sent_body: bytes = b""
    cut: int | None = None
    """The connection breaks after so many bytes of the body."""


Meddle = Callable[[Exchange], None]
Drop = Callable[[dict[str, str]], None]
Around = Callable[[Exchange, Callable[[], None]], None]
"""Gets a request that was not forwarded yet, whose status is 0, and what forwards it. It may answer by itself, raise
ConnectionResetError before or after forwarding, or `cut` the answer's body."""


class _Proxy(ThreadingHTTPServer):
    def handle_error(self, request: object, client_address: object) -> None:
        """A client that goes away, or refuses our certificate, is what some tests want."""


@contextmanager
def meddling(
    server: Server,
    *,
    answer: Meddle | None = None,
    request: Drop | None = None,
    around: Around | None = None,
    tls: ssl.SSLContext | None = None,
    host: str = "127.0.0.1",
) -> Iterator[Server]:
    """The server as seen through the proxy. `answer` changes answers, `request` the headers of requests (names in
    lower case); a server that checks signatures refuses what was signed otherwise. `around` decides whether a request
    is forwarded at all, and may change the body that is. `tls` makes it an https server.

    A client that has it as its HTTP proxy is served too, whatever host name it asks for: no name needs an address.
    """
    upstream = urlsplit(server.endpoint_url)

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _forward(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            sent = {name.lower(): value for name, value in self.headers.items() if name.lower() != "connection"}
            if self.headers.get("Expect", "").lower() == "100-continue":
                sent.pop("expect")
            body = self.rfile.read(length)
            if len(body) < length:  # the client died on the way
                self.close_connection = True
                return
            if request is not None:
                request(sent)
            found = Exchange(self.command, self.path, 0, {}, b"", sent, body)

            def forward() -> None:
                connection = http.client.HTTPConnection(upstream.hostname or "", upstream.port, timeout=30)
                try:
                    target = urlsplit(self.path)
                    query = f"?{target.query}" if target.query else ""
                    path = self.path if not target.netloc else target.path + query
                    connection.request(self.command, path, found.sent_body, sent)
                    got = connection.getresponse()
                    found.status, found.body = got.status, got.read()
                    found.headers = {name.lower(): value for name, value in got.getheaders()}
                finally:
                    connection.close()

            if around is None:
                forward()
            else:
                around(found, forward)
            if answer is not None:
                answer(found)
            self._reply(found)

        def _reply(self, found: Exchange) -> None:
            self.send_response_only(found.status)
            for name, value in found.headers.items():
                if name not in ("transfer-encoding", "connection", "content-length"):
                    self.send_header(name, value)
            size = found.headers.get("content-length", "0") if self.command == "HEAD" else str(len(found.body))
            self.send_header("content-length", size)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(found.body[: found.cut])
            if found.cut is not None:
                self.close_connection = True

        def log_message(self, *arguments: object) -> None:  # type: ignore[override]
            return

    for verb in ("GET", "PUT", "POST", "HEAD", "DELETE"):
        setattr(Handler, f"do_{verb}", Handler._forward)
    with _Proxy(("127.0.0.1", 0), Handler) as proxy:
        if tls is not None:
            proxy.socket = tls.wrap_socket(proxy.socket, server_side=True, do_handshake_on_connect=False)
        thread = threading.Thread(target=proxy.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            scheme = "https" if tls else "http"
            yield replace(server, endpoint_url=f"{scheme}://{host}:{proxy.server_address[1]}")
        finally:
            proxy.shutdown()
            thread.join(5)

"""HTTP as S3 servers and proxies speak it, well and badly: a scripted peer on loopback. Guards I15 (loud)."""

from __future__ import annotations

import socket
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from itertools import takewhile
from pathlib import Path

import pytest

from disks.stores.s3.http import Connections, NotConnected
from disks.stores.s3.http_answers import CutOff, HttpAnswer, NotHttp
from oplog.errors import UsageError
from tests.servers import free_port

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok"
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: Chunked\r\n\r\n"
BIG = memoryview(bytes(range(256)) * 40_000)


class Peer:
    """Answers the requests of each connection with the next of `answers`; b"" closes the connection instead."""

    def __init__(self, answers: list[bytes], *, body_of_puts: bool = True) -> None:
        self.answers = answers
        self.connections = 0
        self.requests: list[bytes] = []
        self._reads_bodies = body_of_puts

    def serve(self, connection: socket.socket) -> None:
        self.connections += 1
        with suppress(OSError), connection, connection.makefile("rb") as file:
            while head := b"".join(takewhile(lambda line: line not in (b"", b"\r\n"), iter(file.readline, None))):
                length = [line for line in head.splitlines() if line.lower().startswith(b"content-length:")]
                body = file.read(int(length[0].split(b":")[1])) if length and self._reads_bodies else b""
                self.requests.append(head + b"\r\n" + body)
                answer = self.answers.pop(0)
                connection.sendall(answer)
                if not answer or b"connection: close" in answer.lower():
                    connection.shutdown(socket.SHUT_WR)
                    return


@contextmanager
def listening(serve: Callable[[socket.socket], None], tls: ssl.SSLContext | None = None) -> Iterator[int]:
    def accept() -> None:
        with suppress(OSError):
            while True:
                made, _ = listener.accept()
                threading.Thread(target=begin, args=(made,), daemon=True).start()

    def begin(made: socket.socket) -> None:
        made.settimeout(10)
        with suppress(OSError):
            serve(tls.wrap_socket(made, server_side=True) if tls is not None else made)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        threading.Thread(target=accept, daemon=True).start()
        yield listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)


@contextmanager
def connected(*answers: bytes, body_of_puts: bool = True) -> Iterator[tuple[Connections, Peer]]:
    peer = Peer(list(answers), body_of_puts=body_of_puts)
    with listening(peer.serve) as port:
        connections = Connections(f"http://127.0.0.1:{port}/bucket")
        yield connections, peer
        connections.close()


def ask(
    connections: Connections, method: str = "GET", body: memoryview | None = None, seconds: float = 5.0
) -> HttpAnswer:
    headers = {"host": "s3.test"} | ({} if body is None else {"content-length": str(len(body))})
    return connections.exchange(method, "/b/k", headers, body, connect_seconds=seconds, silence_seconds=seconds)


@pytest.mark.parametrize(
    ("answer", "body"),
    [
        (OK, b"ok"),
        (b"HTTP/1.1 100 Continue\r\n\r\n" + OK, b"ok"),
        (b"HTTP/1.1 200\r\ncontent-length: 0\r\n\r\n", b""),
        (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
        (CHUNKED + b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\n\r\n", b"abc0123456789"),
        (CHUNKED + b"0\r\nx-late: 1\r\n\r\n", b""),
        (b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(BIG) + BIG, bytes(BIG)),
    ],
    ids=["length", "continue", "empty", "no content", "chunked", "trailer", "large"],
)  # fmt: skip
def test_a_body_is_read_to_its_end_and_the_connection_used_again(answer: bytes, body: bytes) -> None:
    with connected(answer, OK) as (connections, peer):
        assert ask(connections).body == body
        assert ask(connections).body == b"ok"
        assert peer.connections == 1


def test_an_answer_that_comes_byte_by_byte() -> None:
    answer = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n"

    def serve(connection: socket.socket) -> None:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        connection.recv(65536)
        for byte in answer:
            connection.sendall(bytes([byte]))

    with listening(serve) as port:
        assert ask(Connections(f"http://127.0.0.1:{port}")).body == b"abc"


def test_headers_are_lower_case_joined_and_latin_1() -> None:
    head = 'HTTP/1.1 404 Not Found\r\nETag:  "e" \r\nX-A: 1\r\nx-a: 2\r\nx-b: \xe4\r\nContent-Length: 7\r\n\r\n'
    with connected(head.encode("latin-1"), OK) as (connections, peer):
        answer = ask(connections, "HEAD")
        assert (answer.status, answer.body) == (404, b"")
        assert answer.headers == {"etag": '"e"', "x-a": "1, 2", "x-b": "\xe4", "content-length": "7"}
        assert ask(connections).body == b"ok", "an answer to HEAD has no body, whatever length it names"
        assert peer.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 200 OK\r\nConnection: Close\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok",
        b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok and more",
        b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\nok",
    ],
    ids=["close", "1.0", "out of step", "to the end"],
)
def test_a_connection_that_cannot_go_on_is_not_used_again(answer: bytes) -> None:
    with connected(answer, OK) as (connections, peer):
        assert ask(connections).body == b"ok"
        assert ask(connections).body == b"ok"
        assert peer.connections == 2


def test_a_connection_closed_by_the_server_is_not_used_again() -> None:
    """It closed it while idle."""
    closed = threading.Event()

    def serve(connection: socket.socket) -> None:
        with connection:
            connection.recv(65536)
            connection.sendall(OK)
        closed.set()

    with listening(serve) as port:
        connections = Connections(f"http://127.0.0.1:{port}")
        for _ in range(3):
            closed.clear()
            assert ask(connections).body == b"ok"
            assert closed.wait(5)


@pytest.mark.parametrize("length", [0, 1, len(BIG)])
def test_a_body_arrives_as_it_was(length: int) -> None:
    with connected(OK, OK) as (connections, peer):
        assert ask(connections, "PUT", BIG[:length]).status == 200
        assert ask(connections, "PUT", BIG[:length]).status == 200
        assert [request.partition(b"\r\n\r\n")[2] for request in peer.requests] == [bytes(BIG[:length])] * 2


def test_a_server_that_refuses_before_the_body_has_come_is_heard() -> None:
    """It answers 503, closes and resets: the answer counts, not the broken pipe."""
    refusal = b"HTTP/1.1 503 Slow Down\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
    with connected(refusal, OK, body_of_puts=False) as (connections, peer):
        assert ask(connections, "PUT", BIG).status == 503
        assert ask(connections).body == b"ok"
        assert peer.connections == 2


@pytest.mark.parametrize(
    ("answer", "error"),
    [
        (b"", ConnectionResetError),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\n", ConnectionResetError),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\n1234", CutOff),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n1234", CutOff),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n12345\r\n", CutOff),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\nfive\r\n", NotHttp),
        (b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: -1\r\n\r\n", NotHttp),
        (b"HTTP/1.1 200 OK\r\nno colon\r\nConnection: close\r\n\r\n", NotHttp),
        (b"SSH-2.0-server\r\n\r\nconnection: close", NotHttp),
        (b"HTTP/1.1 200 OK\r\nconnection: close\r\n" + b"x: y\r\n" * 100_000, NotHttp),
    ],
    ids=["nothing", "half a head", "half a body", "half a chunk", "no last chunk", "no size", "negative", "no colon",
         "not http", "endless head"],
)  # fmt: skip
def test_an_answer_that_is_none_is_an_error_and_closes_its_line(answer: bytes, error: type[OSError]) -> None:
    with connected(answer, OK) as (connections, peer):
        with pytest.raises(OSError) as caught:
            ask(connections)
        assert type(caught.value) is error
        assert ask(connections).body == b"ok"
        assert peer.connections == 2


@pytest.mark.parametrize("silent", [True, False])
def test_a_silent_server_is_left_and_a_slow_one_is_not(silent: bool) -> None:
    """The limit is for a pause, not for an answer."""
    over = threading.Event()

    def serve(connection: socket.socket) -> None:
        connection.recv(65536)
        for byte in b"HTTP/1.1 " if silent else OK:
            over.wait(0.03)
            connection.sendall(bytes([byte]))
        over.wait(10)

    with listening(serve) as port:
        connections = Connections(f"http://127.0.0.1:{port}")
        if silent:
            with pytest.raises(TimeoutError):
                ask(connections, seconds=0.2)
        else:
            assert ask(connections, seconds=1.0).body == b"ok"
        over.set()


@pytest.mark.parametrize("host", ["127.0.0.1", "no-such-host.invalid", "a" * 70, "a..b"])
def test_nothing_is_sent_where_nobody_listens(host: str) -> None:
    with pytest.raises(NotConnected):
        ask(Connections(f"http://{host}:{free_port()}"))


@pytest.mark.parametrize("secret", ["key\n", "key\r\nx-injected: 1", "\u20ac"])
def test_a_header_is_one_line(secret: str) -> None:
    with connected(OK) as (connections, peer):
        with pytest.raises(UsageError, match="header") as caught:
            connections.exchange("GET", "/", {"x": secret}, connect_seconds=5, silence_seconds=5)
        assert "key" not in caught.value.message
        assert peer.connections == 0


# Proxies


def tunnels(seen: list[bytes], answer: bytes = b"HTTP/1.1 200 Connection established\r\n\r\n") -> Callable[..., None]:
    """A proxy that takes everybody to 127.0.0.1, whatever name is asked for."""

    def forward(source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                target.sendall(data)
        with suppress(OSError):
            target.shutdown(socket.SHUT_WR)

    def serve(connection: socket.socket) -> None:
        head = connection.recv(65536)
        seen.append(head)
        connection.sendall(answer)
        if b" 200 " in answer:
            port = int(head.split(b" ")[1].rpartition(b":")[2])
            with socket.create_connection(("127.0.0.1", port)) as beyond:
                threading.Thread(target=forward, args=(beyond, connection), daemon=True).start()
                forward(connection, beyond)

    return serve


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A certificate for `s3.test` that vouches for itself, with its key."""
    place = tmp_path_factory.mktemp("tls") / "both.pem"
    command = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=s3.test -addext subjectAltName=DNS:s3.test"
    subprocess.run(
        ["openssl", *command.split(), "-keyout", place, "-out", f"{place}.crt"], check=True, capture_output=True
    )
    place.write_bytes(place.read_bytes() + Path(f"{place}.crt").read_bytes())
    return place


def test_https_goes_through_a_tunnel_to_the_server_it_names(certificate: Path) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificate)
    peer, seen = Peer([OK, OK, OK]), list[bytes]()
    with listening(peer.serve, context) as port, listening(tunnels(seen)) as proxy:
        via = f"http://a%40b:c@127.0.0.1:{proxy}"
        connections = Connections(f"https://s3.test:{port}", ca_bundle=str(certificate), proxy_url=via)
        assert ask(connections, "PUT", BIG).body == b"ok"
        assert ask(connections).body == b"ok"
        assert [peer.connections, len(seen)] == [1, 1]
        assert seen[0].startswith(f"CONNECT s3.test:{port} HTTP/1.1\r\n".encode())
        assert b"proxy-authorization: Basic YUBiOmM=\r\n" in seen[0]
        assert b"proxy-authorization" not in peer.requests[0]
        for url in (f"https://other.test:{port}", f"https://s3.test:{port}"):
            bundle = str(certificate) if "other" in url else None
            with pytest.raises(NotConnected) as caught:
                ask(Connections(url, ca_bundle=bundle, proxy_url=via))
            assert isinstance(caught.value.__cause__, ssl.SSLCertVerificationError)
        assert len(peer.requests) == 2


def test_a_proxy_that_refuses_is_no_server() -> None:
    refusal = b"HTTP/1.1 407 Proxy Authentication Required\r\nContent-Length: 0\r\n\r\n"
    with listening(tunnels([], refusal)) as proxy, pytest.raises(NotConnected, match="407"):
        ask(Connections("https://s3.test", proxy_url=f"http://127.0.0.1:{proxy}"))


def test_http_is_forwarded_with_the_whole_address() -> None:
    peer = Peer([OK])
    with listening(peer.serve) as proxy:
        assert ask(Connections("http://s3.test:81", proxy_url=f"u:p@127.0.0.1:{proxy}")).body == b"ok"
    assert peer.requests[0].startswith(b"GET http://s3.test:81/b/k HTTP/1.1\r\n")
    assert b"proxy-authorization: Basic dTpw\r\n" in peer.requests[0]


@pytest.mark.parametrize("url", ["http://s3.test:99999", "https://s3.test:x"])
def test_a_port_that_is_none_is_named(url: str) -> None:
    with pytest.raises(UsageError, match=r"s3\.test"):
        Connections(url)


def test_a_proxy_that_wants_tls_itself_is_refused_in_words() -> None:
    with pytest.raises(UsageError, match="by http"):
        Connections("https://s3.test", proxy_url="https://proxy.test")

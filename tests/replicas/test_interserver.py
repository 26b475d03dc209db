"""Parts from machine to machine: who may ask, what is given, and that nothing a peer says is believed."""

from __future__ import annotations

import errno
import hashlib
import hmac
import http.client
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from disks.base import Disk
from disks.local.copied import UncachedFile
from disks.stores.wrappers.limit import Limiter
from oplog.errors import AccessDenied, Damaged, NoSpace, NotFound, Transient
from tests.replicas.machines import SECRET, Machine
from tiering.catalog.lineage import content_digest
from tiering.config.settings import KeeperConfig
from tiering.engine.store import Store
from tiering.table.part import Part
from zerocopy.interserver import client, offer, receiving, server, signing
from zerocopy.interserver.client import Peers
from zerocopy.interserver.receiving import SLOWEST_BYTES, PeerPace, TooSlow
from zerocopy.keeper.client import Keeper
from zerocopy.replica.connections import connections
from zerocopy.replica.inserts.staged_parts import ARRIVING

PART = "all_0_0_0"


@pytest.fixture
def machine(tmp_path: Path, settings: KeeperConfig, capsys: pytest.CaptureFixture[str]) -> Machine:
    made = Machine(tmp_path, "a", settings, capsys)
    made.create()
    made.insert(1, 2, 3)
    return made


def address(store: Store) -> str:
    server = connections(store.context).server
    assert server is not None
    return server.address


def signed(
    store: Store, path: str, headers: dict[str, str] | None = None, *, secret: str = SECRET, late: float = 0
) -> dict[str, str]:
    """The headers of a request that is signed with them."""
    named = headers or {}
    asked = signing.AskedRequest(
        method="GET",
        address=address(store),
        path=path,
        byte_range=named.get("Range", ""),
        digest=named.get("Frostline-Digest", ""),
        whole=named.get("Frostline-Whole", ""),
    )
    return {"Authorization": signing.sign(secret, asked, now=time.time() - late), **named}


def sent(store: Store, path: str, headers: dict[str, str], *, method: str = "GET") -> tuple[int, str]:
    """The status and body of the answer to these headers."""
    connection = http.client.HTTPConnection(address(store), timeout=60)
    connection.request(method, path, headers=headers)
    answer = connection.getresponse()
    body = answer.read().decode(errors="replace")
    connection.close()
    return answer.status, body


def ask(
    store: Store, path: str, *, secret: str = SECRET, late: float = 0, headers: dict[str, str] | None = None
) -> int:
    named = headers or {}
    return sent(store, path, signed(store, path, named, secret=secret, late=late) | named)[0]


def test_only_who_knows_the_secret_gets_anything(machine: Machine) -> None:
    with machine.serving() as store:
        uuid = store.definition("d.t").uuid
        path = f"/v1/{uuid}/{PART}"
        assert ask(store, path) == 200
        assert ask(store, path, secret="another secret of somebody") == 401
        assert ask(store, path, late=400) == 401
        assert ask(store, path, headers={"Authorization": "Frostline-1 1:2:3"}) == 401
        assert ask(store, path, headers={"Authorization": "\xff"}) == 401
        assert ask(store, path, headers={"Authorization": f"Frostline-1 {int(time.time())}:\xff"}) == 401
        assert ask(store, "/") == 404


def test_a_request_that_was_caught_is_good_for_nothing(machine: Machine) -> None:
    """I9: what is signed is all that the answer depends on, the machine that is asked, and that it is asked once."""
    with machine.serving() as store:
        uuid = store.definition("d.t").uuid
        path, other = f"/v1/{uuid}/{PART}", f"/v1/{uuid}"
        caught = signed(store, path, {"Frostline-Digest": "a"})
        changed: list[tuple[str, dict[str, str], str]] = [
            (other, {}, "GET"),
            (f"{path}?x=1", {}, "GET"),
            (path, {}, "HEAD"),
            (path, {"Range": "bytes=5-"}, "GET"),
            (path, {"Frostline-Digest": "b"}, "GET"),
            (path, {"Frostline-Whole": "1000000"}, "GET"),
        ]
        for where, headers, method in changed:
            assert sent(store, where, caught | headers, method=method)[0] == 401, (where, headers, method)
        assert sent(store, path, caught)[0] == 200
        assert sent(store, path, caught) == (425, "it was answered before")
        assert sent(store, path, signed(store, path))[0] == 200


def test_a_request_that_an_earlier_daemon_answered_is_refused(machine: Machine) -> None:
    """I9. What was answered is forgotten when a daemon ends; its port is the same afterwards."""
    asked = signing.AskedRequest(method="GET", address="a:1", path="/")
    caught = signing.sign(SECRET, asked, now=1000)
    assert signing.SignatureCheck(SECRET, began=990).refusal(caught, asked, now=1000) is None
    later = signing.SignatureCheck(SECRET, began=1001)
    refused = later.refusal(caught, asked, now=1010)
    assert refused is not None
    assert refused.is_repeat
    assert later.refusal(signing.sign(SECRET, asked, now=1001), asked, now=1010) is None
    with machine.serving() as store:
        path = f"/v1/{store.definition('d.t').uuid}/{PART}"
        assert ask(store, path, late=60) == 425


def test_a_request_to_another_machine_is_refused(machine: Machine) -> None:
    """Whatever name it says it was sent to."""
    with machine.serving() as store:
        path = f"/v1/{store.definition('d.t').uuid}/{PART}"
        asked = signing.AskedRequest(method="GET", address="b.example.org:9109", path=path)
        caught = {"Authorization": signing.sign(SECRET, asked, now=time.time()), "Host": asked.address}
        status, why = sent(store, path, caught)
    assert status == 401
    assert "another machine" in why


def test_a_replica_of_an_earlier_version_is_told_so(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    with machine.serving() as store:
        path = f"/v1/{store.definition('d.t').uuid}/{PART}"
        moment = str(int(time.time()))
        digest = hmac.new(SECRET.encode(), f"GET\n{path}\n{moment}".encode(), hashlib.sha256).hexdigest()
        status, why = sent(store, path, {"Authorization": f"Frostline-1 {moment}:{digest}"})
    assert (status, "earlier version" in why) == (401, True)
    assert "upgrade" in caplog.text


def test_what_was_answered_is_remembered_while_it_counts() -> None:
    """A signature of a clock that is five minutes ahead counts for ten; then nothing of it is kept."""
    asked = signing.AskedRequest(method="GET", address="a:1", path="/")
    check = signing.SignatureCheck(SECRET)
    header = signing.sign(SECRET, asked, now=1000 + signing.WINDOW_SECONDS)
    assert check.refusal(header, asked, now=1000) is None
    for later in (1000, 1000 + 2 * signing.WINDOW_SECONDS):
        refused = check.refusal(header, asked, now=later)
        assert refused is not None
        assert refused.is_repeat
    refused = check.refusal(header, asked, now=1001 + 2 * signing.WINDOW_SECONDS)
    assert refused is not None
    assert not refused.is_repeat
    for moment in range(1, 5):
        now = 10_000 * moment
        assert check.refusal(signing.sign(SECRET, asked, now=now), asked, now=now) is None
    assert len(check._nonces) == len(check._by_time) == 1


@pytest.mark.in_turn
@pytest.mark.parametrize(
    "path",
    [
        "/v1/{uuid}/{part}/part.json",
        "/v1/{uuid}/{part}/..%2Ftable.json",
        "/v1/{uuid}/{part}/%2Fetc%2Fpasswd",
        "/v1/{uuid}/..%2F..%2F..%2Fstate/journal.db",
        "/v1/{uuid}/detached/x",
        "/v1/00000000-0000-0000-0000-000000000000/{part}",
        "/v1/..%2F..%2Fstate/{part}",
        "/v1/{uuid}/all_9_9_0",
    ],
)
def test_what_is_no_file_of_a_part_is_not_given(machine: Machine, path: str) -> None:
    """P61: a path from elsewhere leads out of the disk."""
    with machine.serving() as store:
        asked = path.format(uuid=store.definition("d.t").uuid, part=PART)
        assert ask(store, asked) == 404


def arriving(machine: Machine, store: Store) -> Path:
    """The part, as if its insert were not done; where it lies now."""
    (ssd,) = (machine.path / "ssd").glob(f"store/*/{store.definition('d.t').uuid}")
    (ssd / ARRIVING).mkdir()
    (ssd / ARRIVING / f"{PART}.json").write_text('{"number": "/one"}')
    return (ssd / PART).rename(ssd / ARRIVING / PART)


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not wait for what may take its place at once."""
    monkeypatch.setattr(server, "_ARRIVING_SECONDS", 0.0)


@pytest.mark.usefixtures("impatient")
def test_a_part_still_arriving_is_given_to_who_knows_from_keeper(machine: Machine) -> None:
    """I9: nobody fetches what may not count. Its digest is said when it does."""
    with machine.serving() as store:
        path = f"/v1/{store.definition('d.t').uuid}/{PART}"
        (stored,) = store.parts("d.t")
        (file,) = stored.part.files
        place = arriving(machine, store)
        known = {"Frostline-Digest": content_digest(stored.part)}
        for asked in (path, f"{path}/{file.name}"):
            assert ask(store, asked) == 404
            assert ask(store, asked, headers={"Frostline-Digest": "0" * 64}) == 404
            assert ask(store, asked, headers=known) == 200
        (place.parent / f"{PART}.json").unlink()
        assert ask(store, path, headers=known) == 404


@pytest.mark.in_turn
@pytest.mark.usefixtures("impatient")
@pytest.mark.parametrize("name", ["..%2Farriving%2Fall_0_0_0", "all_0_0_0%2F..%2Fall_0_0_0", "arriving"])
def test_no_path_is_made_of_the_name_of_what_arrives(machine: Machine, name: str) -> None:
    """P61"""
    with machine.serving() as store:
        (stored,) = store.parts("d.t")
        arriving(machine, store)
        known = {"Frostline-Digest": content_digest(stored.part)}
        assert ask(store, f"/v1/{store.definition('d.t').uuid}/{name}", headers=known) == 404


@pytest.mark.usefixtures("impatient")
def test_a_part_that_takes_its_place_while_it_is_given(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever asks sees no difference, whenever that is."""
    with machine.serving() as store:
        table = store.definition("d.t")
        (stored,) = store.parts("d.t")
        (file,) = stored.part.files
        place, known = arriving(machine, store), {"Frostline-Digest": content_digest(stored.part)}
        original = server._read_if_there

        def read(disk: Disk, path: str) -> bytes | None:
            place.rename(place.parents[1] / PART)
            return original(disk, path)

        monkeypatch.setattr(server, "_read_if_there", read)
        assert ask(store, f"/v1/{table.uuid}/{PART}/{file.name}", headers=known) == 200
        assert ask(store, f"/v1/{table.uuid}/{PART}/{file.name}", headers=known) == 200


def test_a_part_is_fetched_while_its_insert_is_not_done(machine: Machine, tmp_path: Path) -> None:
    with machine.serving() as store, Peers(SECRET) as peers:
        (stored,) = store.parts("d.t")
        arriving(machine, store)
        target = tmp_path / "fetched"
        target.mkdir()
        part, _ = peers.fetch(
            *(address(store), store.definition("d.t"), PART, content_digest(stored.part)),
            *(lambda part: target, Limiter()),
        )
        assert [(file.name, (target / file.name).stat().st_size) for file in part.files] == [
            (file.name, file.size_bytes) for file in stored.part.files
        ]


# -- a peer that lies


Answer = Callable[[BaseHTTPRequestHandler, bytes, bytes], None]


def say(handler: BaseHTTPRequestHandler, body: bytes, *, announced: int | None = None) -> None:
    handler.send_response(206 if handler.headers.get("Range") else 200)
    handler.send_header("Content-Length", str(len(body) if announced is None else announced))
    handler.end_headers()
    handler.wfile.write(body)


@contextmanager
def peer(files: dict[str, bytes], answer: Answer) -> Iterator[str]:
    """A server that has the part's files and says what `answer` makes of them: (handler, the file, what was asked)."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            name = self.path.split("/")[-1]
            content = files["part.json" if name == PART else name]
            begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").rstrip("-"))
            answer(self, name.encode(), content[begin:])

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def honest(handler: BaseHTTPRequestHandler, name: bytes, content: bytes) -> None:
    say(handler, content)


def another_description(handler: BaseHTTPRequestHandler, name: bytes, content: bytes) -> None:
    say(handler, content.replace(b'"rows":3', b'"rows":4') if name == PART.encode() else content)


def flipped(handler: BaseHTTPRequestHandler, name: bytes, content: bytes) -> None:
    say(handler, content if name == PART.encode() else content[:-1] + bytes([content[-1] ^ 1]))


def longer(handler: BaseHTTPRequestHandler, name: bytes, content: bytes) -> None:
    say(handler, content if name == PART.encode() else content + b"x")


def shorter(handler: BaseHTTPRequestHandler, name: bytes, content: bytes) -> None:
    say(handler, content if name == PART.encode() else b"")


def without_end(handler: BaseHTTPRequestHandler, name: bytes, content: bytes) -> None:
    say(handler, b" " * (1 << 27) if name == PART.encode() else content)


def breaking_off(handler: BaseHTTPRequestHandler, name: bytes, content: bytes) -> None:
    """Half of what is left, then the connection breaks."""
    if name == PART.encode():
        say(handler, content)
    else:
        say(handler, content[: (len(content) + 1) // 2], announced=len(content))
        handler.close_connection = True


def hanging(handler: BaseHTTPRequestHandler, name: bytes, content: bytes) -> None:
    """Half of it, then nothing, until the other end hangs up."""
    if name == PART.encode():
        say(handler, content)
    else:
        say(handler, content[: len(content) // 2], announced=len(content))
        handler.rfile.read(1)


@contextmanager
def asked(machine: Machine, tmp_path: Path, answer: Answer) -> Iterator[Callable[[], tuple[Part, Path]]]:
    with machine.serving() as store:
        table = store.definition("d.t")
        (stored,) = store.parts("d.t")
        place = machine.path / "ssd" / table.part_directory(PART)
        files = {file.name: file.read_bytes() for file in place.iterdir()}
    target = tmp_path / "fetched"
    target.mkdir()
    with peer(files, answer) as where, Peers(SECRET) as peers:
        yield lambda: peers.fetch(where, table, PART, content_digest(stored.part), lambda part: target, Limiter())


@pytest.mark.in_turn
@pytest.mark.parametrize("answer", [another_description, flipped, longer, shorter, without_end])
def test_what_a_lying_peer_sends_is_refused(machine: Machine, tmp_path: Path, answer: Answer) -> None:
    """I10: the digest in Keeper vouches for the description, and that for every byte."""
    with asked(machine, tmp_path, answer) as take, pytest.raises(Damaged) as error:
        take()
    assert PART in error.value.message


@pytest.mark.in_turn
@pytest.mark.parametrize("answer", [honest, breaking_off])
def test_what_an_honest_peer_sends_is_whole(machine: Machine, tmp_path: Path, answer: Answer) -> None:
    """A transfer that breaks off goes on where it broke."""
    with asked(machine, tmp_path, answer) as take:
        part, directory = take()
    assert part.rows == 3
    for file in part.files:
        assert hashlib.sha256((directory / file.name).read_bytes()).hexdigest() == file.sha256


def test_a_peer_that_refuses_or_is_not_there_is_told(machine: Machine, tmp_path: Path) -> None:
    with Peers(SECRET) as peers, Peers("another secret of somebody") as strangers:
        with machine.serving() as store:
            table, where = store.definition("d.t"), address(store)
            with pytest.raises(AccessDenied):
                strangers.fetch(where, table, PART, "0" * 64, lambda part: tmp_path, Limiter())
            with pytest.raises(NotFound):
                peers.fetch(where, table, "all_7_7_0", "0" * 64, lambda part: tmp_path, Limiter())
        with pytest.raises(Transient):
            peers.fetch(where, table, PART, "0" * 64, lambda part: tmp_path, Limiter())


@pytest.mark.in_turn
def test_a_peer_that_hangs_is_left_and_the_next_one_is_asked(
    tmp_path: Path,
    settings: KeeperConfig,
    keeper: Keeper,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    a, b, c = (Machine(tmp_path, name, settings, capsys) for name in "abc")
    a.create()
    b.join()
    c.join()
    a.insert(1, 2, 3)
    with a.serving():
        c.sync()
    (place,) = (a.path / "ssd").glob(f"store/*/*/{PART}")
    files = {file.name: file.read_bytes() for file in place.iterdir()}
    asked_for: list[str] = []

    def answer(handler: BaseHTTPRequestHandler, name: bytes, content: bytes) -> None:
        asked_for.append(name.decode())
        hanging(handler, name, content)

    monkeypatch.setattr(client, "_SILENCE_SECONDS", 5.0)
    with peer(files, answer) as where, c.serving():
        keeper.set("/tables/01/d.t/replicas/a/host", where.encode())
        assert b.sync()["fetched"] == [PART]
    assert b.keys() == [1, 2, 3]
    assert asked_for == [PART, "data-0000.parquet"], "who is silent is not asked once more"


def test_a_peer_that_drips_is_left(monkeypatch: pytest.MonkeyPatch, machine: Machine, tmp_path: Path) -> None:
    """By the clock that looks at it each piece takes an hour."""
    hours = itertools.count()
    with asked(machine, tmp_path, honest) as take:
        monkeypatch.setattr(receiving, "_clock", lambda: 3600.0 * next(hours))
        with pytest.raises(Transient) as error:
            take()
    assert "it sends too slowly" in error.value.message


def test_the_pace_is_that_of_the_peer() -> None:
    """Breaks count; what is waited for here does not."""
    now = 0.0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(receiving, "_clock", lambda: now)
        pace = PeerPace()
        for _ in range(10):
            now += 29
            pace.came(29 * SLOWEST_BYTES)
        now += 1000
        pace.waited(1000)
        pace.came(1)
        now += 31
        with pytest.raises(TooSlow):
            pace.came(30 * SLOWEST_BYTES)


def test_bytes_between_replicas_count_with_those_of_the_stores() -> None:
    waits: list[float] = []
    limiter = Limiter(1000, clock=lambda: 0.0, sleep=waits.append)
    with limiter.slot(500):
        pass
    limiter.pass_bytes(1000)
    limiter.pass_bytes(1)
    assert waits == [0.5, 1.5]


def test_who_limits_bytes_gives_them_no_faster(machine: Machine, tmp_path: Path) -> None:
    passed: list[int] = []
    with machine.serving() as store:
        store.context.limiter = Limiter(1 << 40)
        store.context.limiter.pass_bytes = passed.append  # type: ignore[method-assign]
        (stored,) = store.parts("d.t")
        digest, table = content_digest(stored.part), store.definition("d.t")
        with Peers(SECRET) as peers:
            part, _ = peers.fetch(address(store), table, PART, digest, lambda part: tmp_path, Limiter())
    assert sorted(passed) == sorted(file.size_bytes for file in part.files)


def test_who_limits_bytes_takes_them_no_faster(machine: Machine, tmp_path: Path) -> None:
    passed: list[int] = []
    limiter = Limiter(1 << 40)
    limiter.pass_bytes = passed.append  # type: ignore[method-assign]
    with machine.serving() as store, Peers(SECRET) as peers:
        (stored,) = store.parts("d.t")
        digest, table = content_digest(stored.part), store.definition("d.t")
        part, _ = peers.fetch(address(store), table, PART, digest, lambda part: tmp_path, limiter)
    assert sum(passed) == sum(file.size_bytes for file in part.files)


def test_a_full_disk_is_said_and_no_peer_is_blamed(
    machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: UncachedFile, data: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(UncachedFile, "write", full)
    with asked(machine, tmp_path, honest) as take, pytest.raises(NoSpace):
        take()


# -- a part whose files come with it


def whole(handler: BaseHTTPRequestHandler, description: bytes, rest: bytes, *, length: str = "") -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(description) + len(rest)))
    handler.send_header("Frostline-Whole", length or str(len(description)))
    handler.end_headers()
    handler.wfile.write(description + rest)


def fetched_whole(store: Store, files: dict[str, bytes], tmp_path: Path, *, length: str = "", rest: bytes) -> Path:
    """What of it comes from a peer that sends this behind the `part.json`, and has nothing else."""

    def answer(handler: BaseHTTPRequestHandler, name: bytes, content: bytes) -> None:
        assert name == PART.encode(), "what came is asked for again"
        whole(handler, content, rest, length=length)

    (stored,) = store.parts("d.t")
    target = tmp_path / "fetched"
    target.mkdir()
    with peer(files, answer) as at, Peers(SECRET) as peers:
        peers.fetch(at, store.definition("d.t"), PART, content_digest(stored.part), lambda part: target, Limiter())
    return target


def files_of(machine: Machine, store: Store) -> dict[str, bytes]:
    (directory,) = (machine.path / "ssd").glob(f"store/*/{store.definition('d.t').uuid}/{PART}")
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_files_that_came_with_the_part_are_not_asked_for(machine: Machine, tmp_path: Path) -> None:
    with machine.serving() as store:
        files = files_of(machine, store)
        rest = b"".join(data for name, data in sorted(files.items()) if name != "part.json")
        target = fetched_whole(store, files, tmp_path, rest=rest)
        assert {file.name: file.read_bytes() for file in target.iterdir()} | {"part.json": b""} == files | {
            "part.json": b""
        }


@pytest.mark.in_turn
@pytest.mark.parametrize(
    ("length", "change", "said"),
    [
        ("", lambda rest: rest[:-1], "bytes of all files"),
        ("", lambda rest: rest + b"x", "bytes of all files"),
        ("", lambda rest: b"x" + rest[1:], "other bytes than those of"),
        ("-1", lambda rest: rest, "a part.json of no length"),
        ("9" * 13, lambda rest: rest, "a part.json of no length"),
        ("1_0", lambda rest: rest, "a part.json of no length"),
        ("99999", lambda rest: rest, "part.json|all_0_0_0"),
        ("0", lambda rest: rest, "part.json|all_0_0_0"),
    ],
)
def test_nothing_is_kept_of_a_part_that_came_otherwise(
    machine: Machine, tmp_path: Path, length: str, change: Callable[[bytes], bytes], said: str
) -> None:
    """I10: what a peer says of the length is believed no more than its bytes."""
    with machine.serving() as store:
        files = files_of(machine, store)
        rest = b"".join(data for name, data in sorted(files.items()) if name != "part.json")
        with pytest.raises(Damaged, match=said):
            fetched_whole(store, files, tmp_path, length=length, rest=change(rest))


def test_a_part_of_many_bytes_comes_file_by_file(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    with machine.serving() as store:
        table = store.definition("d.t")

        def asked(most: str) -> str | None:
            connection = http.client.HTTPConnection(address(store), timeout=60)
            path = f"/v1/{table.uuid}/{PART}"
            connection.request("GET", path, headers=signed(store, path, {"Frostline-Whole": most}))
            answer = connection.getresponse()
            answer.read()
            connection.close()
            return answer.headers["Frostline-Whole"]

        assert asked("1000000") is not None
        assert [asked(most) for most in ("10", "x", "-5", "")] == [None] * 4
        monkeypatch.setattr(offer, "WHOLE_BYTES", 10)
        assert asked("9" * 30) is None

"""A bucket that refuses, or breaks off, behind a proxy: the command line says so, and nothing is lost (I15, P55)."""

from __future__ import annotations

import pytest

from tests.integration.bad_inputs import FEBRUARY, GOOD, JANUARY, TABLE, Cli, Fault, Proxy, create
from tests.integration.bad_inputs import cli as cli
from tests.integration.bad_inputs import cold as cold
from tests.integration.bad_inputs import proxy as proxy

pytestmark = pytest.mark.in_turn

KEYS = sum(int(line.split(",")[1]) for line in GOOD)

FAULTS = [
    pytest.param(Fault(403, "AccessDenied"), (12,), id="403"),
    pytest.param(Fault(503, "SlowDown"), (5,), id="503"),
    pytest.param(Fault(404, "NoSuchBucket"), (10,), id="404"),
]


@pytest.mark.parametrize(("fault", "codes"), FAULTS)
def test_a_bucket_that_refuses(cold: Cli, proxy: Proxy, fault: Fault, codes: tuple[int, ...]) -> None:
    """Each verb says what the bucket said, with the code of its kind; afterwards everything is there."""
    parts = cold.parts()
    fault = Fault(fault.status, fault.code)
    proxy.fault = fault
    for command in (
        ("query", f"select sum(key) from {TABLE}"),
        ("table", "alter", TABLE, "--add-column", "more:int64"),
        ("gc", "s3"),
        ("restore", "s3"),
    ):
        answer = cold(*command)
        assert answer.code in codes, (command, answer)
        assert answer.err.strip(), command
    assert fault.hits
    proxy.fault = None
    assert cold.parts() == parts
    assert cold.rows() == len(GOOD)
    cold.is_sound()


@pytest.mark.parametrize(("fault", "codes"), FAULTS)
def test_a_bucket_that_refuses_writes(cold: Cli, proxy: Proxy, fault: Fault, codes: tuple[int, ...]) -> None:
    """A move to a bucket that can be read and not written fails, and the part stays where it is."""
    parts = cold.parts()
    proxy.fault = Fault(fault.status, fault.code, methods=("PUT", "POST"))
    answer = cold("move", TABLE, "--partition", FEBRUARY, "--to-volume", "cold")
    assert answer.code in (1, 3, *codes), answer
    assert answer.err.strip()
    proxy.fault = None
    assert cold.parts() == parts
    assert cold.rows() == len(GOOD)
    cold.ok("move", TABLE, "--partition", FEBRUARY, "--to-volume", "cold")
    assert cold.rows() == len(GOOD)
    cold.is_sound()


def test_a_truncated_body(cold: Cli, proxy: Proxy) -> None:
    """A body that ends early is never taken for the file."""
    fault = Fault(methods=("GET",))
    proxy.fault = fault
    answer = cold("move", TABLE, "--partition", JANUARY, "--to-volume", "hot")
    assert answer.code in (1, 3, 5), answer
    assert fault.hits
    query = cold("--json", "query", f"select sum(key) from {TABLE}")  # it may go on where the body ended
    assert query.code != 0 or query.document["rows"] == [[KEYS]], query
    proxy.fault = None
    assert cold.parts()[f"{JANUARY}_1_1_0"] == "s3"
    assert cold.rows() == len(GOOD)
    cold.is_sound()


def test_a_drop_while_the_bucket_refuses(cold: Cli, proxy: Proxy) -> None:
    """I2: the drop fails, yet nobody sees half a table, other tables can be used, and the next start finishes it."""
    cold.ok("table", "create", "demo.other", "--column", "key:int64", "--order-by", "key")
    proxy.fault = Fault(403, "AccessDenied", methods=("PUT", "POST", "DELETE"))
    cold.fails(12, "-y", "table", "drop", TABLE, says=("AccessDenied",))
    tables = cold.ok("--json", "table", "list").document["tables"]
    assert [table.get("table") or table.get("name") for table in tables] == ["demo.other"]
    cold.ok("query", "select count(*) from demo.other")
    proxy.fault = None
    cold.fails(10, "query", f"select count(*) from {TABLE}", says=(TABLE,))
    assert cold.ok("--json", "parts").document["parts"] == []
    cold.is_sound()
    create(cold)

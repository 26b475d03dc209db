"""Names of columns, keys and texts that other languages could take for their own: each stands for itself (I22)."""

from __future__ import annotations

import hashlib
import io
import re
from urllib.parse import unquote, urlsplit

import duckdb
import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from disks.config import ObjectDiskConfig
from disks.stores.base import check_key
from disks.stores.memory import MemoryStore
from oplog.errors import NotFound, UsageError
from spark_tiering.queries import required
from spark_tiering.references import quoted
from tests.crash import mutants
from tests.tiers import define
from tiering.config.settings import Config
from tiering.insert.inputs import bucket_sources
from tiering.insert.inputs.bucket_sources import BucketSources
from tiering.query.sql.column_types import identifier, text
from tiering.query.sql_filter import parse_filter
from tiering.table.names import check_name
from tiering.table.pruning import And, IsNull, Or, Predicate

mutants.apply_from_environment()

ENGINE = duckdb.connect()
HOSTILE = ['a" is null or "b', 'x"y', "a; drop table t --", "'", '""', "a` b", "\\", "--", "/*", "$1", "{x}", "%", "_"]
names = st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=("Cc", "Cs")), min_size=1, max_size=12)
segments = st.text(st.sampled_from("ab%41#?&+ =[]*;'\"\\:@~\u00fc"), min_size=1, max_size=6)


class Expression:
    """As much of one of Spark's as is asked for."""

    def __init__(self, kind: str, name: str = "", child: Expression | None = None) -> None:
        self._kind, self._name, self._child = kind, name, child

    def getClass(self) -> Expression:  # noqa: N802  Java's names
        return self

    def getSimpleName(self) -> str:  # noqa: N802
        return self._kind

    def name(self) -> str:
        return self._name

    def child(self) -> Expression | None:
        return self._child


@settings(max_examples=25)
@given(names)
@example(HOSTILE[0])
def test_a_condition_of_spark_is_about_the_column_it_names(name: str) -> None:
    """A column whose name holds a quote was another condition, by which parts with rows were left out."""
    try:
        check_name(name)
    except UsageError:
        assume(False)
    table = define("d.t", dict.fromkeys([name, "a", "b", "k"], "int64"), ["k"])
    condition = required._condition(Expression("IsNull", child=Expression("AttributeReference", name)), table)
    found: Predicate = parse_filter(condition, table)
    assert found == Or((And((IsNull(name),)),))


@given(names)
def test_the_engine_reads_names_and_texts_as_they_are(name: str) -> None:
    assume(name.strip())
    answer = ENGINE.execute(f"SELECT {text(name)} AS {identifier(name)}")
    assert (answer.description or [("",)])[0][0] == name
    assert answer.fetchall() == [(name,)]


@given(names)
def test_spark_s_quotes_end_where_the_name_does(name: str) -> None:
    assert re.fullmatch(r"`(?:[^`]|``)*`", quoted(name), re.DOTALL)
    assert quoted(name)[1:-1].replace("``", "`") == name


def is_key(key: str) -> bool:
    """Whether a store takes an object of that key: `%11` stands for a control character, which none does."""
    try:
        check_key(key)
    except ValueError:
        return False
    return True


@given(st.lists(segments.filter(lambda name: name not in (".", "..")), min_size=1, max_size=3), segments)
@example(["x%41"], "b")
@example(["x#1"], "b")
@example(["x?q"], "b")
@example(["a"], "q?")
@example(["a"], "data[1]")
@example(["[z-a]"], "*")
@example(["%11"], "1")
def test_a_key_that_exists_is_the_object_that_is_read(directories: list[str], name: str) -> None:
    """`x%41/b.csv` read `xA/b.csv`: a key of the bucket had become a URL. `q?.csv` read `q1.csv` too, though there is
    an object of that very key."""
    key = "/".join([*directories, name + ".csv"])
    others = {re.sub(r"[?*]|\[.*\]", "1", key), unquote(key), key.replace("?", "#")} - {key}
    others = {other for other in others if is_key(other)}

    def open_at(config: ObjectDiskConfig, **options: object) -> MemoryStore:
        parts = urlsplit(config.url)
        assert (parts.query, parts.fragment) == ("", "")
        prefix = unquote(parts.path).lstrip("/")
        store = MemoryStore()
        for there in (key, *others):
            if there.startswith(prefix):
                data = there.encode()
                store.put(there.removeprefix(prefix).lstrip("/"), data, sha256=hashlib.sha256(data).digest())
        return store

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bucket_sources, "open_store", open_at)
        sources = BucketSources(Config(state_path="x", disks={}, policies={})).find(f"s3://bucket/{key}")
        assert [url for url, _ in sources] == [f"s3://bucket/{key}"]
        assert io.BufferedReader(sources[0][1]()).read() == key.encode()


def test_a_glob_that_is_none_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bucket_sources, "open_store", lambda config, **options: MemoryStore())
    with pytest.raises(UsageError, match="not a glob of keys"):
        BucketSources(Config(state_path="x", disks={}, policies={})).find("s3://bucket/x/[z-a].csv")
    with pytest.raises((UsageError, NotFound)):
        BucketSources(Config(state_path="x", disks={}, policies={})).find("s3://bucket/")

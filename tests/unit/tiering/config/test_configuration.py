"""`tiering.config.reading`: search order, precedence, errors that name the place, secrets."""

from __future__ import annotations

import json
import os
from contextlib import suppress
from pathlib import Path

import pytest

from disks.registry import DISK_TYPES
from oplog.errors import FrostlineError, Refused, UsageError
from tiering.config import reading as configuration
from tiering.config.reading import load, load_from, masked
from tiering.config.secrets import MASK, without_passwords

REPOSITORY = Path(__file__).parents[4]
EXAMPLES = sorted((REPOSITORY / "configs").glob("*.yaml"))


def written(directory: Path, text: str, name: str = "frostline.yaml") -> Path:
    path = directory / name
    path.write_text(text)
    return path


def failure(directory: Path, text: str) -> FrostlineError:
    with pytest.raises(FrostlineError) as caught:
        load(written(directory, text), {})
    return caught.value


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No configuration of the machine is in reach."""
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


class TestSearch:
    def test_embedded_default_lies_below_the_home(self, tmp_path: Path) -> None:
        config = load(None, {"FROSTLINE_HOME": str(tmp_path / "f")})
        assert config.disks["ssd"].path == str(tmp_path / "f" / "ssd")
        assert config.disks["s3"].url == (tmp_path / "f" / "bucket" / "store").as_uri() + "/"
        assert config.state_path == str(tmp_path / "f" / "state")
        assert [volume.name for volume in config.policies["hot_cold"].volumes] == ["hot", "cold"]

    def test_order_flag_variable_directory_home(self, tmp_path: Path) -> None:
        def file(name: str, workers: int) -> Path:
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(f"limits: {{workers: {workers}}}\n")
            return path

        file("home/.config/frostline/frostline.yaml", 2)
        assert load(None, {}).limits.workers == 2
        file("cwd/frostline.yaml", 3)
        assert load(None, {}).limits.workers == 3
        named = file("named.yaml", 4)
        assert load(None, {"FROSTLINE_CONFIG": str(named)}).limits.workers == 4
        given = file("given.yaml", 5)
        assert load(given, {"FROSTLINE_CONFIG": str(named)}).limits.workers == 5

    def test_a_named_file_must_exist(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match=r"no such configuration file.*FROSTLINE_CONFIG"):
            load(None, {"FROSTLINE_CONFIG": str(tmp_path / "none.yaml")})

    def test_a_file_replaces_the_default_by_top_level_key(self, tmp_path: Path) -> None:
        config = load(written(tmp_path, "daemon: {tick_seconds: 5m}\n"), {})
        assert config.daemon.tick_seconds == 300
        assert set(config.disks) == {"ssd", "s3"}


class TestValues:
    def test_sizes_durations_and_relative_paths(self, tmp_path: Path) -> None:
        path = written(
            tmp_path,
            "state_path: s\n"
            "disks:\n"
            "  a: {type: local, path: fast, keep_free_space_bytes: 10GiB, max_size_bytes: 500M}\n"
            "  b: {type: object_disk, url: 'file:slow/store/', retention_seconds: 30d}\n"
            "policies: {p: {volumes: [{name: v, disks: [a, b]}]}}\n",
        )
        config = load(path, {})
        assert config.disks["a"].keep_free_space_bytes == 10 * 1024**3
        assert config.disks["a"].max_size_bytes == 500 * 1024**2
        assert config.disks["b"].retention_seconds == 30 * 86400
        assert config.disks["a"].path == str(tmp_path / "fast")
        assert config.disks["b"].url == (tmp_path / "slow" / "store").as_uri() + "/"
        assert config.state_path == str(tmp_path / "s")

    def test_environment_over_file(self, tmp_path: Path) -> None:
        path = written(tmp_path, "limits: {workers: 4, bytes_per_second: 1M}\n")
        loaded = load_from(
            path,
            {
                "FROSTLINE_LIMITS__BYTES_PER_SECOND": "50MiB",
                "FROSTLINE_DISKS__S3__URL": "s3://bucket/prefix/",
                "FROSTLINE_DISKS__SSD__MAX_SIZE_BYTES": "1GiB",
                "FROSTLINE_DISKS__S3__READ_ONLY": "true",
                "FROSTLINE_POLICIES__HOT_COLD__VOLUMES__0__LOAD_BALANCING": "least_used",
                "FROSTLINE_POLICIES__HOT_COLD__MOVE_FACTOR": "0.3",
                "FROSTLINE_HOME": str(tmp_path),
            },
        )
        config = loaded.config
        assert config.limits.workers == 4
        assert config.limits.bytes_per_second == 50 * 1024**2
        assert config.disks["s3"].url == "s3://bucket/prefix/"
        assert config.disks["s3"].read_only is True
        assert config.disks["ssd"].max_size_bytes == 1024**3
        assert config.policies["hot_cold"].volumes[0].load_balancing == "least_used"
        assert config.policies["hot_cold"].move_factor == 0.3
        assert "FROSTLINE_DISKS__S3__URL" in loaded.variables
        assert "FROSTLINE_HOME" not in loaded.variables

    def test_fractions_of_seconds_count(self, tmp_path: Path) -> None:
        file = written(tmp_path, "inbox: {poll_seconds: 500ms, stable_seconds: 1.5, batch_seconds: 2m}")
        inbox = load(file, {}).inbox
        assert (inbox.poll_seconds, inbox.stable_seconds, inbox.batch_seconds) == (0.5, 1.5, 120)
        assert load(file, {"FROSTLINE_INBOX__POLL_SECONDS": "0.25"}).inbox.poll_seconds == 0.25
        with pytest.raises(UsageError, match=r"line 1: disks.s3.retention_seconds: expected `int`"):
            load(written(tmp_path, "disks: {s3: {type: object_disk, url: 'file:b/', retention_seconds: 500ms}}"), {})
        with pytest.raises(UsageError, match=r"line 1: inbox.poll_seconds"):
            load(written(tmp_path, "inbox: {poll_seconds: 0s}"), {})

    def test_environment_can_make_a_whole_disk_and_policy(self, tmp_path: Path) -> None:
        config = load(
            None,
            {
                "FROSTLINE_HOME": str(tmp_path),
                "FROSTLINE_DISKS__HDD__TYPE": "local",
                "FROSTLINE_DISKS__HDD__PATH": "/mnt/hdd",
                "FROSTLINE_POLICIES": "{p: {volumes: [{name: v, disks: [hdd]}]}}",
            },
        )
        assert config.policy("p").volumes[0].disks == ("hdd",)


ALIAS_BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 9)
)
"""A billion values in half a kilobyte."""

TYPES = " or ".join(DISK_TYPES)
"""What `type` of a disk may be, as messages say it."""

MISTAKES = [
    ("disks: [", "line 1: not YAML", ""),
    ("- a", "a mapping of keys", ""),
    ("", "holds no keys", "frostline config default"),
    ("# nothing yet\n", "holds no keys", "frostline config default"),
    ("{}\n", "holds no keys", "frostline config default"),
    (ALIAS_BOMB, "more than 100,000 values", "few aliases"),
    ("dsks: {}", "line 1: dsks: no such key", "'disks'"),
    (
        "disks:\n  s3:\n    type: local\n    path: x\n    keep_free: 1",
        "line 5: disks.s3.keep_free: no such key",
        "keep_free_space",
    ),
    ("disks:\n  s3: {type: tape}", f"disks.s3.type: expected {TYPES}, got 'tape'", ""),
    ("disks: {a: {type: local}}", "disks.a: a disk of type local needs the key 'path'", ""),
    ("disks: {a: {path: x}}", "disks.a: the key 'type' is missing", ""),
    ("disks: {a: {tpye: local, path: x}}", "disks.a.tpye: no such key", "'type'"),
    ("disks: {a: {type: [local]}}", f"disks.a.type: expected {TYPES}, got ['local']", ""),
    ("disks: {a: {type: object_disk}}", "disks.a: a disk of type object_disk needs the key 'url'", ""),
    ("disks: {a: {type: local, path: ''}}", "disks.a: a disk of type local needs the key 'path'", ""),
    ("disks: {a: {type: object_disk, url: ''}}", "disks.a: a disk of type object_disk needs the key 'url'", ""),
    ("disks: {a: {type: object_disk, url: 's3:///'}}", "the URL names no bucket", "s3://bucket/prefix/"),
    (
        "disks:\n  a:\n    type: local\n    path: x\n    url: s3://b/p/",
        "line 5: disks.a.url: a disk of type local has no 'url'",
        "known keys: type, path",
    ),
    (
        "disks: {a: {type: object_disk, url: 's3://b/p/', path: x}}",
        "disks.a.path: a disk of type object_disk has no 'path'",
        "known keys: type, url",
    ),
    (
        "disks: {a: {type: local, path: x, retention_seconds: 1d}}",
        "disks.a.retention_seconds: a disk of type local has no 'retention_seconds'",
        "known keys: type, path",
    ),
    (
        "disks: {a: {type: object_disk, url: 's3://b/p/', keep_free_space_bytes: 1GiB}}",
        "disks.a.keep_free_space_bytes: a disk of type object_disk has no 'keep_free_space_bytes'",
        "",
    ),
    ("disks: {a: {type: object_disk, url: 's3://b/p/', retention_second: 1d}}", "no such key", "'retention_seconds'"),
    ("disks: {a: {type: object_disk, url: 'ftp://x/'}}", "unknown kind of URL: ftp://x/", "s3://"),
    ("disks: {a-b: {type: local, path: x}}", "not a name: 'a-b'", "letters"),
    ("disks: {a: {type: local, path: x, max_size_bytes: 10 apples}}", "disks.a.max_size_bytes: not a size", "10GiB"),
    ("limits: {workers: many}", "limits.workers: expected `int`, got 'many'", ""),
    ("limits: {workers: 0}", "limits.workers: expected `int` >= 1, got 0", ""),
    ("daemon: {tick_seconds: 0}", "daemon.tick_seconds: expected `float` >= 0.01, got 0", ""),
    ("limits: 3", "limits: expected keys and values, got a number", ""),
    ("limits:", "line 1: limits: expected keys and values, got nothing", "leave the section out"),
    ("daemon: {tick_seconds: soon}", "not a duration: 'soon'", "30d"),
    ("limits: {}\nlimits: {}", "line 2: limits: given twice", ""),
    ("policies: {}", "at least one policy", ""),
    ("policies: {p: {volumes: []}}", "at least one volume", ""),
    ("policies: {p: {volumes: [{name: v, disks: []}]}}", "has no disk", ""),
    ("policies: {p: {volumes: [{name: v, disks: [sdd]}]}}", "no such disk: sdd", "'ssd'"),
    ("policies: {p: {volumes: [{name: v, disks: [ssd]}, {name: v, disks: [s3]}]}}", "two volumes are called 'v'", ""),
    ("policies: {p: {volumes: [{name: v, disks: [ssd, ssd]}]}}", "in the policy twice", ""),
    ("policies: {p: {move_factor: 2, volumes: [{name: v, disks: [ssd]}]}}", "policies.p.move_factor", ""),
    (
        "policies: {p: {volumes: [{name: v, disks: [ssd], volume_priority: 1}, "
        "{name: w, disks: [s3], volume_priority: 3}]}}",
        "volume_priority must be 1 to 2 without gaps, got 1, 3",
        "",
    ),
    (
        "policies: {p: {volumes: [{name: v, disks: [ssd], volume_priority: 1}, {name: w, disks: [s3]}]}}",
        "either every volume has a volume_priority or none",
        "",
    ),
]


@pytest.mark.parametrize(("text", "message", "hint"), MISTAKES)
def test_every_mistake_names_file_key_and_remedy(tmp_path: Path, text: str, message: str, hint: str) -> None:
    error = failure(tmp_path, text)
    assert error.exit_code == 2
    assert str(tmp_path / "frostline.yaml") in error.message
    assert message in error.message
    assert hint in error.hint


@pytest.mark.parametrize(
    ("variable", "message"),
    [
        ("FROSTLINE_DISK__S3__URL", "no such key: disk"),
        ("FROSTLINE_STATE_PAHT", "no such key: state_paht"),
        ("FROSTLINE_DISKS__S3__URLL", "disks.s3.urll: no such key"),
        ("FROSTLINE_DISKS__SSD__REGION", "disks.ssd.region: a disk of type local has no 'region'"),
        ("FROSTLINE_DISKS__SSD__TYPE", f"disks.ssd.type: expected {TYPES}, got 'v'"),
        ("FROSTLINE_DISKS__NEW__PATH", "disks.new: the key 'type' is missing"),
        ("FROSTLINE_LIMITS__WORKERS", "limits.workers: expected `int`, got 'v'"),
        ("FROSTLINE_POLICIES__HOT_COLD__VOLUMES__7__NAME", "is a list of 2"),
        ("FROSTLINE_STATE_PATH__X", "holds no keys"),
    ],
)
def test_a_mistake_in_the_environment_names_the_variable(tmp_path: Path, variable: str, message: str) -> None:
    with pytest.raises(UsageError) as caught:
        load(None, {"FROSTLINE_HOME": str(tmp_path), variable: "v"})
    assert variable in caught.value.message
    assert message in caught.value.message


def test_other_programs_variables_are_left_alone(tmp_path: Path) -> None:
    assert load_from(None, {"FROSTLINE_HOME": str(tmp_path), "FROSTLINE_BUCKET": "b"}).variables == ()


SECRET = (
    "disks:\n  ssd: {type: local, path: ssd}\n"
    "  s3: {type: object_disk, url: 's3://b/p/', access_key_id: AKIA, secret_access_key: hunter2}\n"
)


_FOREIGN = {
    "hooks": "hooks: {failed: {on: [move_failed], command: [/bin/true]}}\n",
    "secret": SECRET,
    "spark": "spark: {conf: {spark.jars: /tmp/x.jar}}\n",
}


class TestFoundHere:
    """`./frostline.yaml` that nobody named: its owner may be anybody. Guards P61's kind."""

    @pytest.mark.parametrize("text", _FOREIGN.values(), ids=_FOREIGN)
    @pytest.mark.parametrize("how", ["owner", "group"])
    def test_what_runs_or_is_secret_is_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str, how: str
    ) -> None:
        monkeypatch.chdir(tmp_path)
        path = tmp_path / "frostline.yaml"
        path.write_text(text)
        path.chmod(0o600)
        if how == "group":
            path.chmod(0o620)
        else:
            monkeypatch.setattr(configuration.os, "geteuid", lambda: os.getuid() + 1)
            monkeypatch.setattr(configuration, "_ROOT", -1)
        with pytest.raises(Refused, match="found in the current directory") as refused:
            load(None, {})
        assert "--config" in refused.value.hint
        assert ("chmod go-w" if how == "group" else "chown") in refused.value.hint
        with suppress(UsageError):  # not refused where it is named
            load(path, {})

    def test_the_rest_gets_a_warning(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "frostline.yaml").write_text("limits: {workers: 3}\n")
        (tmp_path / "frostline.yaml").chmod(0o664)
        assert load(None, {}).limits.workers == 3
        assert "may write to it" in caplog.text
        caplog.clear()
        (tmp_path / "frostline.yaml").chmod(0o644)
        load(None, {})
        assert not caplog.text


class TestSecrets:
    def test_a_file_with_a_secret_that_others_can_read_is_refused(self, tmp_path: Path) -> None:
        path = written(tmp_path, SECRET)
        for mode in (0o644, 0o640, 0o604):
            path.chmod(mode)
            with pytest.raises(Refused, match="others can read") as caught:
                load(path, {})
            assert "hunter2" not in str(caught.value)
            assert "chmod 600" in caught.value.hint
        path.chmod(0o600)
        assert load(path, {}).disks["s3"].secret_access_key == "hunter2"

    def test_secrets_are_never_shown(self, tmp_path: Path) -> None:
        path = written(tmp_path, SECRET)
        path.chmod(0o600)
        environment = {
            "FROSTLINE_DISKS__S3__ENDPOINT_URL": "http://user:pw123@host:1/",
            "FROSTLINE_BACKUP__ENDPOINT_URL": "http://user:pw123@host:2/",
        }
        config = load(path, environment)
        shown = json.dumps(masked(config))
        assert MASK in shown
        assert "hunter2" not in shown
        assert "pw123" not in shown
        assert "hunter2" not in repr(config)

    def test_a_value_that_is_not_yaml_is_not_repeated(self, tmp_path: Path) -> None:
        path = written(tmp_path, SECRET)
        path.chmod(0o600)
        with pytest.raises(UsageError) as caught:
            load(path, {"FROSTLINE_DISKS__S3": "{secret_access_key: hunter2"})
        assert "not YAML" in str(caught.value)
        assert "hunter2" not in str(caught.value) + (caught.value.hint or "")

    @pytest.mark.in_turn
    def test_a_value_nested_too_deeply_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(UsageError, match="nested too deeply"):
            load(written(tmp_path, "disks: " + "[" * 100_000), {})
        with pytest.raises(UsageError, match="nested too deeply"):
            load(written(tmp_path, "disks: {}"), {"FROSTLINE_DISKS__S3": "[" * 100_000})

    def test_the_password_of_a_url_is_covered_wherever_it_stands(self) -> None:
        text = "cannot reach s3://me:hun@ter2@bucket/x@y: http://h:1/a:b@c, http://u:p@h"
        covered = "cannot reach s3://me:********@bucket/x@y: http://h:1/a:b@c, http://u:********@h"
        assert without_passwords(text) == covered

    def test_secret_properties_of_spark_are_never_shown(self, tmp_path: Path) -> None:
        text = "spark: {conf: {spark.authenticate.secret: hunter2, spark.executor.memory: 1g}}"
        config = load(written(tmp_path, text), {})
        assert config.spark.conf["spark.authenticate.secret"] == "hunter2"
        assert masked(config)["spark"]["conf"] == {"spark.authenticate.secret": MASK, "spark.executor.memory": "1g"}

    @pytest.mark.parametrize("word", ["no", "'no'", "false"])
    def test_the_no_of_yaml_is_a_no(self, tmp_path: Path, word: str) -> None:
        disk = f"s: {{type: object_disk, url: 'file:///b/', conditional_put: {word}}}"
        policy = "p: {volumes: [{name: v, disks: [s]}]}"
        config = load(written(tmp_path, f"disks: {{{disk}}}\npolicies: {{{policy}}}\n"), {})
        assert config.disks["s"].conditional_put == "no"

    def test_a_yes_is_none_where_it_is_no_choice(self, tmp_path: Path) -> None:
        error = failure(tmp_path, "disks: {s: {type: object_disk, url: 'file:///b/', conditional_put: yes}}")
        assert "conditional_put: expected auto or no, got True" in error.message

    def test_half_a_key_pair_is_an_error_without_the_secret(self, tmp_path: Path) -> None:
        path = written(tmp_path, SECRET.replace("access_key_id: AKIA, ", ""))
        path.chmod(0o600)
        with pytest.raises(UsageError, match="belong together") as caught:
            load(path, {})
        assert "hunter2" not in str(caught.value)


class TestExamples:
    def test_there_are_examples(self) -> None:
        assert {path.stem for path in EXAMPLES} >= {"embedded", "aws", "minio", "ceph"}

    @pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
    def test_every_example_loads(self, path: Path) -> None:
        config = load(path, {})
        assert config.policies

    def test_the_schema_file_is_up_to_date(self) -> None:
        stored = json.loads((REPOSITORY / "configs" / "schema.json").read_text())
        assert stored == json.loads(json.dumps(configuration.json_schema())), "run: make generate"

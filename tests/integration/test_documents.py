"""The demo, and every command that the documents show: run as they stand, in the order in which they stand."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from tests.crash.scenarios import SCENARIOS
from tests.integration.demos import PYTHON, environment, run_each_command
from tests.integration.demos import demo as demo
from tests.servers import REPOSITORY, Server
from tiering.cli import main as cli

SHOWN = (
    "README.md",
    *(
        pytest.param(document, marks=pytest.mark.in_turn)
        for document in (
            "docs/tour.md",
            "docs/scripting.md",
            "docs/insert.md",
            "docs/history.md",
            "docs/disasters.md",
            "docs/integrity.md",
            "docs/aws-minio-ceph.md",
        )
    ),
)


@pytest.mark.in_turn
@pytest.mark.parametrize("kind", ["ministack", pytest.param("ceph", marks=pytest.mark.ceph)])
def test_the_demo_on_an_s3_server(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """What `make demo-s3` and `make demo-ceph` do: nothing differs when the bucket is a real one."""
    server: Server = request.getfixturevalue(kind)
    bucket = server.new_bucket()
    done = subprocess.run(
        ["frostline", "demo", "--json"],
        cwd=tmp_path,
        env={
            **environment(tmp_path),
            **server.environment(),
            "FROSTLINE_DISKS__S3__URL": f"s3://{bucket}/demo/",
        },
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert json.loads(done.stdout)["flights"] == 336_776
    assert f"s3://{bucket}/demo/" in done.stderr


@pytest.mark.parametrize("document", SHOWN)
def test_every_command_of_the_document_works_word_for_word(document: str, demo: Path, tmp_path: Path) -> None:
    run_each_command(document, demo, tmp_path)


@pytest.mark.in_turn
def test_the_page_on_python_has_examples_that_run_in_order(demo: Path, tmp_path: Path) -> None:
    shutil.copytree(demo / ".demo", tmp_path / ".demo")
    code = "\n".join(PYTHON.findall((REPOSITORY / "docs/python.md").read_text()))
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    assert "No such table: nyc.trains" in done.stdout


def documents() -> list[Path]:
    return [*REPOSITORY.glob("*.md"), *REPOSITORY.glob("docs/**/*.md")]


def headings(path: Path) -> set[str]:
    """The anchors that GitHub gives to the headings of a document."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_links_between_documents_lead_somewhere() -> None:
    for path in documents():
        for target, anchor in re.findall(r"\]\(([^)#]*)(?:#([^)]+))?\)", path.read_text()):
            if "://" not in target:
                there = path.parent / target if target else path
                assert there.exists(), f"{path.relative_to(REPOSITORY)} points to {target}"
                assert not anchor or anchor in headings(there), f"{path.relative_to(REPOSITORY)}: {target}#{anchor}"


def test_files_and_tests_that_documents_name_exist() -> None:
    packages = "oplog|disks|tiering|restore|backup|spark_tiering|tests|benchmarks"
    named = re.compile(rf"`((?:{packages})/[\w./-]*)(?:::(\w+))?`")
    dotted = re.compile(rf"`((?:{packages})(?:\.[a-z_]+)+)(?<!\.json)(?<!\.lock)`")
    for path in documents():
        for module in dotted.findall(path.read_text()):
            there = REPOSITORY / module.replace(".", "/")
            what = there if there.is_dir() else there.with_suffix(".py")
            inside = there.parent / "__init__.py" if there.parent.is_dir() else there.parent.with_suffix(".py")
            found = what.exists() or (inside.exists() and f"def {there.name}(" in inside.read_text())
            assert found, f"{path.relative_to(REPOSITORY)} names {module}"
        for name, function in named.findall(path.read_text()):
            there = REPOSITORY / name
            assert there.exists(), f"{path.relative_to(REPOSITORY)} names {name}"
            is_there = not function or re.search(rf"^ *(?:def|class) {function}\b", there.read_text(), re.MULTILINE)
            assert is_there, f"{path.name} names {name}::{function}"


def rows_of_damage() -> list[list[str]]:
    """The cells of each row of the tables of damage, their heads left out."""
    text = (REPOSITORY / "docs/integrity.md").read_text().partition("## Each kind of damage")[2]
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.MULTILINE)
    ]
    return [row for row in rows if row[0] != "damage" and not row[0].startswith("---")]


def test_each_kind_of_damage_has_a_test() -> None:
    rows = rows_of_damage()
    assert len(rows) > 40
    for damage, _, answered, test in rows:
        assert re.fullmatch(r"`tests/[\w/.]+(::\w+)?`", test), damage
        assert answered, damage


def test_every_verb_and_option_of_the_page_on_damage_exists() -> None:
    root = typer.main.get_command(cli.build())
    assert isinstance(root, TyperGroup)
    known = set(root.list_commands(typer.Context(root)))
    everywhere = {option for parameter in root.params for option in parameter.opts}
    seen = set()
    for span in re.findall(r"`([^`\n]+)`", (REPOSITORY / "docs/integrity.md").read_text()):
        words = span.removeprefix("frostline ").split()
        if words[0] not in known:
            assert not span.startswith("frostline ") or words[0] == "demo", span
            assert " --" not in span, f"{span} is no verb"
            continue
        command: Any = root
        while isinstance(command, TyperGroup) and words:
            command = command.get_command(typer.Context(command), words.pop(0))
            assert command is not None, span
        options = {option for parameter in command.params for option in parameter.opts} | everywhere
        assert {word for word in words if word.startswith("-")} <= options, span
        seen.add(span)
    assert {"fsck --repair", "gc --delete", "disk adopt"} <= seen


def test_each_crash_tested_operation_has_its_order_of_writes() -> None:
    """It is on the page of the order of writes."""
    text = (REPOSITORY / "docs/order-of-writes.md").read_text()
    assert [name for name in SCENARIOS if f"`{name}`" not in text] == []


def test_the_demo_never_replaces_what_it_did_not_make(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years of work")
    done = subprocess.run(
        ["frostline", "demo", "mine"],
        cwd=tmp_path,
        env=environment(tmp_path),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 13
    assert (tmp_path / "mine" / "thesis.txt").read_text() == "years of work"

"""Processes that commit to one bucket without pause, on a real S3 server: each comes to commit, each commit is made
once (I2, I6; P40)."""

from __future__ import annotations

import subprocess
import sys
from collections import Counter
from pathlib import Path

from disks.config import ObjectDiskConfig
from disks.object_disk.disk import ObjectDisk
from disks.stores.open import open_store
from tests.servers import Server

WRITERS, COMMITS = 3, 12
WRITER = """
import sys
from pathlib import Path
from disks.config import ObjectDiskConfig
from disks.object_disk.disk import ObjectDisk
from disks.stores.open import open_store
from oplog.kinds import Inserted
url, state, commits = sys.argv[1], Path(sys.argv[2]), int(sys.argv[3])
disk = ObjectDisk("s3", open_store(ObjectDiskConfig(url=url)), state)
disk.refresh()
print("ready", flush=True)
sys.stdin.readline()
for number in range(commits):
    with disk.transaction(Inserted()) as transaction:
        transaction.create(f"t/{state.name}-{number}/part.json", b"{}")
        transaction.commit()
disk.close()
"""


def test_each_of_three_commits_and_nothing_is_lost_or_doubled(
    s3_environment: Server, bucket: str, tmp_path: Path
) -> None:
    url = f"s3://{bucket}/together/"
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, url, str(tmp_path / f"w{number}"), str(COMMITS)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for number in range(WRITERS)
    ]
    for process in processes:
        assert process.stdout
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        assert process.stdin
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    disk = ObjectDisk("s3", open_store(ObjectDiskConfig(url=url)), tmp_path / "other")
    expected = {f"t/w{writer}-{number}/part.json" for writer in range(WRITERS) for number in range(COMMITS)}
    assert {info.path for info in disk.walk()} == expected
    assert disk.revision == WRITERS * COMMITS
    wrote = Counter(entry.commit.writer.partition("-")[0] for entry in disk.log.entries())
    assert sorted(wrote.values()) == [COMMITS] * WRITERS
    disk.close()

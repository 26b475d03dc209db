"""The commands of docs/spark.md, run as they stand on the store of the demo."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.integration.demos import demo as demo
from tests.integration.demos import run_each_command


@pytest.mark.in_turn
@pytest.mark.timeout(1200)  # several drivers of Spark, one after the other
def test_every_command_about_spark_works_word_for_word(java: None, demo: Path, tmp_path: Path) -> None:
    run_each_command("docs/spark.md", demo, tmp_path)

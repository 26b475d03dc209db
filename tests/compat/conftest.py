"""The tests of this directory can be run with a mistake put in: see `tests.crash.mutants`."""

from __future__ import annotations

from tests.crash import mutants

mutants.apply_from_environment()

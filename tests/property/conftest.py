"""Some of these tests are checks of `make mutants`."""

from __future__ import annotations

from tests.crash import mutants

mutants.apply_from_environment()

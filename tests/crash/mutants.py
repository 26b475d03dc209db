"""Seeded mistakes, and the proof that the checks find each."""

from __future__ import annotations

import os

ENVIRONMENT = "FROSTLINE_MUTANT"


def apply_from_environment() -> None:
    """Put the mistake that the environment names into this process."""
    if os.environ.get(ENVIRONMENT):
        raise NotImplementedError

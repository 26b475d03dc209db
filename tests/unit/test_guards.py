"""The list of invariants and their tests: it finds what tests name, and what nobody guards or defines."""

from __future__ import annotations

import pytest

from tests import guards

DESIGN = """
| I1 | Once: every part is on one disk |
| I2 | All or nothing; never half |
| I3 | No dangling reference |
| P1 | A clock is wrong |
"""

MODULE = '''
"""Guards I1."""

def test_one(): ...

def test_two():
    """I2, P1, and more."""

class TestMore:
    """I2 to
    I3."""

    def test_three(self): ...

def helper():
    """I3."""
'''


def test_docstrings_of_tests_classes_and_modules_count() -> None:
    found = guards.collect({"a/test_a.py": MODULE}, guards.defined(DESIGN))
    assert found.tests == {
        "I1": {"a/test_a.py": 3},
        "I2": {"a/test_a.py": 2},
        "I3": {"a/test_a.py": 1},
        "P1": {"a/test_a.py": 1},
    }
    assert found.unknown == []


def test_only_tests_guard() -> None:
    assert guards.collect({"a/helpers.py": MODULE}, guards.defined(DESIGN)).tests == {
        "I1": {},
        "I2": {},
        "I3": {},
        "P1": {},
    }


@pytest.mark.parametrize(
    ("text", "found"), [("I1 to I3", ["I1", "I2", "I3"]), ("P7, P9", ["P7", "P9"]), ("I10x AI1", [])]
)
def test_numbers(text: str, found: list[str]) -> None:
    assert list(guards.numbers(text)) == found


def test_what_is_defined_has_a_name() -> None:
    assert guards.defined(DESIGN) == {
        "I1": "Once",
        "I2": "All or nothing",
        "I3": "No dangling reference",
        "P1": "A clock is wrong",
    }


def faults(*modules: str, document: str = DESIGN) -> list[str]:
    return guards.faults(
        guards.collect({f"test_{n}.py": text for n, text in enumerate(modules)}, guards.defined(document))
    )


def test_an_invariant_that_no_test_names_is_a_fault() -> None:
    assert faults(MODULE) == []
    assert faults(MODULE.replace("Guards I1.", "Guards.")) == ["no test names I1"]
    assert faults(MODULE, document=f"{DESIGN}| I4 | Order of death |\n") == ["no test names I4"]


def test_a_pitfall_that_no_test_names_is_a_fault() -> None:
    assert faults(MODULE.replace("P1, ", "")) == ["no test names P1"]


def test_a_number_that_nothing_defines_is_a_fault() -> None:
    number = "P" + "99"
    (fault,) = faults(MODULE, f"# {number}: whatever\n")
    assert fault.startswith(f"test_1.py: {number} is defined neither in")


def test_documents_without_their_tables_are_a_fault() -> None:
    assert faults("", document="") == ["docs/design.md defines no invariant", "docs/pitfalls.md defines no pitfall"]


def test_a_check_of_the_page_on_security_without_a_test() -> None:
    head = "| what is checked | test |\n|---|---|\n"
    shown = "| paths stay inside | `tests/contract/test_disk.py::test_hostile_paths_are_refused` |\n"
    assert guards.unproved(head + shown) == []
    unproved = guards.unproved(f"{head}{shown}| all is well | `tests/contract` |\n| so is this | |\n")
    assert [fault.rpartition(" that ")[2] for fault in unproved] == ["all is well", "so is this"]
    assert guards.unproved("nothing") == ["docs/security.md has no checks"]

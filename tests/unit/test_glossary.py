"""The glossary gives each word one meaning and each meaning one word, and stays short."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

GLOSSARY = Path(__file__).parents[2] / "docs" / "glossary.md"
LIMIT = 50
_SYNONYM = re.compile(r"^(?:see|same as|the same as|like|also|another word for)\b|\balso called\b|\bsynonym\b", re.I)


def rows(text: str) -> list[tuple[str, str]]:
    """Word and meaning of each row, without the heads of the tables."""
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in re.findall(r"^\|.*\|$", text, re.M)]
    return [(row[0], row[1]) for row in cells if row[0] != "word" and not set(row[0]) <= {"-", ":"}]


def faults(text: str) -> list[str]:
    """What breaks "one word, one meaning", as sentences."""
    table = rows(text)
    words = Counter(word.casefold() for word, _ in table)
    meanings = Counter(meaning.casefold() for _, meaning in table)
    return [
        *(f"{word} has {count} rows" for word, count in words.items() if count > 1),
        *(f"{count} words mean {meaning!r}" for meaning, count in meanings.items() if count > 1),
        *(f"a row for several words: {word}" for word, _ in table if not re.fullmatch(r"[A-Za-z-]+( [a-z-]+)*", word)),
        *(f"a row for several words: {word}" for word, _ in table if re.search(r"\b(?:or|and)\b", word)),
        *(f"{word} only stands for another word" for word, meaning in table if _SYNONYM.search(meaning)),
        *(f"{word} has more than one meaning" for word, meaning in table if ". " in meaning),
        *([f"{len(table)} rows, {LIMIT} allowed"] if len(table) > LIMIT else []),
    ]


def test_the_glossary_has_one_word_for_one_meaning() -> None:
    text = GLOSSARY.read_text(encoding="utf-8")
    assert len(rows(text)) > 30
    assert faults(text) == []


HEAD = "| word | meaning | where |\n|---|---|---|\n"
BLOB = "| blob | an object with the bytes of a file | `a.py` |\n"


def test_a_clean_glossary_has_no_faults() -> None:
    assert faults(HEAD + BLOB + "| blob set | blobs of one part | `b.py` |\n") == []


def test_a_word_with_two_rows_is_a_fault() -> None:
    assert faults(HEAD + BLOB + "| Blob | a large value | `b.py` |\n") == ["blob has 2 rows"]


def test_a_word_with_two_meanings_is_a_fault() -> None:
    row = "| pin | a kept revision. On the command line: a part that stays | `b.py` |\n"
    assert faults(HEAD + BLOB + row) == ["pin has more than one meaning"]


def test_two_words_for_one_meaning_are_a_fault() -> None:
    for words in ("blob, object", "blob or object"):
        (fault,) = faults(HEAD + BLOB.replace("blob", words))
        assert fault.endswith(f"several words: {words}")
    assert faults(HEAD + BLOB + "| thing | the same as blob | `b.py` |\n") == ["thing only stands for another word"]
    (fault,) = faults(HEAD + BLOB + BLOB.replace("| blob", "| thing"))
    assert fault.startswith("2 words mean 'an object ")


def test_a_long_glossary_is_a_fault() -> None:
    words = ["".join(chr(97 + int(digit)) for digit in str(n)) for n in range(LIMIT + 1)]
    table = HEAD + "".join(f"| {word} | meaning {word} | `a.py` |\n" for word in words)
    assert faults(table) == ["51 rows, 50 allowed"]

"""What the user sees. Data goes to stdout, everything else to stderr; `--json` prints exactly one document."""

import logging
import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from oplog.errors import FrostlineError
from tiering.config.escaping import visible, visible_json
from tiering.config.secrets import without_passwords
from tiering.config.units import counted as counted  # verbs take it from here
from tiering.daemon.log_lines import LogStream

if TYPE_CHECKING:
    from msgspec import Struct

SENTENCES = ("reason", "on disks")
"""Columns that may fold."""
SENTENCE_WIDTH = 40

Cell = str | int | float | None


class Output:
    """Writes to a terminal or a pipe. Only on a terminal tables are drawn with rich, whose import takes its time."""

    def __init__(self, *, json: bool = False, quiet: bool = False, color: bool = True) -> None:
        self.json = json
        self.quiet = quiet
        self.color = color
        self.beside: dict[str, Any] = {}
        """Keys that every document of this run carries as well: what could not be reached."""

    @property
    def on_terminal(self) -> bool:
        return sys.stdout.isatty() and not self.json

    def document(self, data: Any, *, indent: int = 2) -> None:
        """The one JSON document."""
        if self.beside:
            data = {**(data if isinstance(data, dict) else fields_of(data)), **self.beside}
        text = encode(data, indent=indent)
        sys.stdout.buffer.write(text + b"\n") if hasattr(sys.stdout, "buffer") else print(text.decode())
        sys.stdout.flush()

    def line(self, text: str = "") -> None:
        """A line of the answer, of any content. Nothing with --json."""
        if not self.json:
            print(visible(text))

    def report(self, text: str) -> None:
        """A line on what a verb did. Nothing with --json, and nothing with --quiet: it is no data."""
        if not self.quiet:
            self.line(text)

    def note(self, text: str) -> None:
        """A remark beside the answer, on stderr. Nothing with --quiet."""
        if not self.quiet:
            print(visible(without_passwords(text)), file=sys.stderr)

    def table(
        self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, empty: str = "", shout: bool = True
    ) -> None:
        """An aligned table; numbers stand right. `empty` is said when there are no rows. `shout`: capital titles."""
        if self.json:
            return
        if not rows:
            if empty:
                self.note(empty)
            return
        by_column = [_visible_texts(cells) for cells in zip(*rows, strict=True)]
        columns = [visible(column) for column in columns]
        right = [
            name != "partition" and _is_numeric(set(cells)) for name, cells in zip(columns, by_column, strict=True)
        ]
        texts = list(zip(*by_column, strict=True))
        if self.on_terminal:
            _draw_rich(columns, texts, right, color=self.color)
        else:
            print("\n".join(aligned([column.upper() for column in columns] if shout else columns, texts, right)))


def _visible_texts(cells: Iterable[Cell]) -> list[str]:
    """The cells of a column."""
    texts = ["" if cell is None else str(cell) for cell in cells]
    return texts if "".join(texts).isprintable() else [visible(text) for text in texts]


def encode(data: Any, *, indent: int = 2) -> bytes:
    """The JSON of plain data, dataclasses, msgspec structs and times (RFC 3339)."""
    import msgspec

    try:
        text = msgspec.json.encode(data, enc_hook=_plain)
    except UnicodeEncodeError:  # a name that is not UTF-8
        text = msgspec.json.encode(_spelled(msgspec.to_builtins(data, enc_hook=_plain, str_keys=True)))
    text = msgspec.json.format(text, indent=indent) if indent else text
    return text if text.isascii() and b"\x7f" not in text else visible_json(text.decode()).encode()


def fields_of(row: "Struct") -> Mapping[str, Any]:
    """The fields that its JSON has, by the names that they have there."""
    from msgspec import UNSET
    from msgspec.structs import fields

    values = ((field.encode_name, getattr(row, field.name)) for field in fields(row))
    return {name: value for name, value in values if value is not UNSET}


def _spelled(data: Any) -> Any:
    """With `\\udcff` for what no UTF-8 can hold."""
    match data:
        case str():
            return data.encode("utf-8", "backslashreplace").decode()
        case dict():
            return {_spelled(key): _spelled(value) for key, value in data.items()}
        case list() | tuple():
            return [_spelled(value) for value in data]
        case _:
            return data


def aligned(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool]) -> list[str]:
    """The lines of a table without a frame, two spaces between the columns."""
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    line = "  ".join(f"%{'' if is_right else '-'}{width}s" for width, is_right in zip(widths, right, strict=True))
    return [(line % tuple(row)).rstrip() for row in (columns, *rows)]


def print_error(error: FrostlineError, *, json: bool) -> None:
    """The failure, as text or as the documented JSON; without the passwords that its URLs had."""
    message, hint = (_spelled(without_passwords(text)) for text in (error.message, error.advice))
    body = {"kind": error.kind, "message": message, "hint": hint, "exit_code": error.exit_code}
    if isinstance(sys.stderr, LogStream) and (sys.stderr.form == "json" or not json):
        sys.stderr.event(logging.ERROR, f"{message}; {hint}", error=body)
        return
    if json:
        print(encode({"error": body}, indent=0).decode(), file=sys.stderr)
        return
    print(f"frostline: {visible(message)}", file=sys.stderr)
    print(f"  {visible(hint)}", file=sys.stderr)


def _plain(value: Any) -> Any:
    if hasattr(value, "item"):  # a numpy scalar
        return value.item()
    if isinstance(value, set | frozenset):
        return sorted(value)
    return str(value)


def _is_numeric(texts: Collection[str]) -> bool:
    cells = [text for text in texts if text]
    return (
        bool(cells)
        and all(cell[0].isdigit() or (cell[0] == "-" and cell[1:2].isdigit()) for cell in cells)
        and not any("-" in cell[1:] or ":" in cell or "_" in cell for cell in cells)
    )


def _draw_rich(columns: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[bool], *, color: bool) -> None:
    """Names and numbers are never broken; only a column of sentences folds to the terminal's width."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    needed = 0
    for index, (column, is_right) in enumerate(zip(columns, right, strict=True)):
        sentence = column in SENTENCES
        table.add_column(column, justify="right" if is_right else "left", no_wrap=not sentence, overflow="fold")
        widest = max(len(text) for text in (column, *(row[index] for row in rows)))
        needed += min(widest, SENTENCE_WIDTH) + 2 if sentence else widest + 2
    for row in rows:
        table.add_row(*(Text(cell) for cell in row))
    console = Console(no_color=not color, highlight=False)
    console.width = max(console.width, needed)
    console.print(table)

"""How the engine reaches the files of one query, and that it reads nothing that was not compared."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

from datafusion import DataFrame, ExecutionPlan, SessionContext

from oplog.errors import Damaged
from tiering.catalog.context import Context
from tiering.parquet.checked_file import CheckedFile, HeldSections
from tiering.parquet.checked_local import unchecked_bytes
from tiering.query.checked_parts import check_local_files, checked_file, local_read
from tiering.query.selection import FileMissing, SelectedFile
from tiering.query.served_files import ServedFiles

_FOOTER_BYTES = 64 * 1024
"""What the engine asks for first of a file, at most; enough for the footer of a part of a few hundred row groups."""
_CHECK_THREADS = 16
_LIMITED_BYTES = 32 * 1024 * 1024
"""More than this is not compared ahead for a statement that stops after some rows."""
_SCANNED = " ?table? projection=["
"""How the scan of a frame is written, up to the names of the columns."""
_MISSING = re.compile(r"Object at location .* not found|No such file or directory|\bnot found: ", re.IGNORECASE)


class EngineFiles:
    """The files that the engine was told of, for one query."""

    def __init__(self, context: Context, engine: SessionContext, closing: ExitStack) -> None:
        self.footer_bytes = _FOOTER_BYTES
        """What the engine may ask for first of a file without reaching into a column chunk."""
        self._context = context
        self._engine = engine
        self._closing = closing
        self._opens_local_files = True
        self._local: dict[str, tuple[SelectedFile, Sequence[str]]] = {}
        self._served: ServedFiles | None = None
        self._checked: dict[str, CheckedFile] = {}
        self._held = HeldSections()

    def place(self, file: SelectedFile) -> str:
        """What files of one table have in common: "local" when the engine opens them by itself."""
        return "local" if self._opens_local_files and file.local_path is not None else "served"

    def url(self, file: SelectedFile, names: Sequence[str]) -> str:
        """Where the engine finds the file, which has columns of these names in this order."""
        if self.place(file) == "local":
            path = str(file.local_path)
            self._local[path.lstrip("/")] = file, names
            return f"file://{quote(path)}"
        if self._served is None:
            self._served = ServedFiles()
            self._closing.callback(self._served.close)
            self._engine.register_object_store("s3://", self._served.engine_store(), self._served.bucket)
        checked = checked_file(self._context, file, self._held)
        self.footer_bytes = min(self.footer_bytes, checked.tail_bytes or _FOOTER_BYTES)
        key = self._served.add(checked)
        self._checked[key] = checked
        return f"s3://{self._served.bucket}/{key}"

    def compare_local(self, frame: DataFrame) -> bool:
        """Compare what the plan reads of local files. False when there is more of it than should be read before the
        first row: they are then forgotten, and when the engine is told of them anew they are served.

        Raises `Damaged` or `FileMissing`.
        """
        if not self._local:
            return True
        plan = frame.optimized_logical_plan().display_indent()
        reads = [local_read(file, _columns_in(plan, names)) for file, names in self._local.values()]
        if unchecked_bytes(reads) <= (_LIMITED_BYTES if "Limit:" in plan else _quarter_of_memory()):
            check_local_files(reads)
            return True
        self._local.clear()
        self._opens_local_files = False
        return False

    def check_complete(self, frame: DataFrame) -> None:
        """Raise `FileMissing` when a file is gone.

        The engine takes a path without an object for an empty directory and leaves it out. So files that its plan does
        not name, be it for this or because their footers answer the query, are looked at.
        """
        named = _paths_in(frame.execution_plan())
        for key, (file, _) in self._local.items():
            if key not in named and not Path(f"/{key}").is_file():
                raise FileMissing(f"{file} is gone", hint=file.hint)
        waiting = [file for key, file in self._checked.items() if key not in named]
        if waiting:
            with ThreadPoolExecutor(_CHECK_THREADS, thread_name_prefix="check") as pool:
                for _ in pool.map(lambda file: file.pieces(file.size() - 1, file.size()), waiting):
                    pass

    def error_of(self, text: str) -> Exception | None:
        """Why the engine could not read a file, when that is what its message is about."""
        if self._served is not None and self._served.failure is not None:
            return self._served.failure
        named = [key for key in self._local if key in text]
        if named and _MISSING.search(text):
            file, _ = self._local[max(named, key=len)]
            return FileMissing(f"{file} is gone", hint=file.hint)
        if self._local and "Parquet error" in text:
            return self._broken_local_file()
        return None

    def _broken_local_file(self) -> Damaged | None:
        """The first local file that is not what was written now, though it was before."""
        try:
            check_local_files([local_read(file, None) for file, _ in self._local.values()])
        except Damaged as error:
            return error
        return None


def _columns_in(plan: str, names: Sequence[str]) -> list[int] | None:
    """Those of the columns that some scan of the plan, as the engine writes it, reads; None when that is all of them.

    Whose scan it is does not matter: a name too many is a column compared for nothing. Scans in subqueries of
    expressions, which are no inputs of the plan, are written, too.
    """
    scans = plan.split("TableScan:")[1:]
    if not all(scan.startswith(_SCANNED) for scan in scans):
        return None
    lists = [scan.removeprefix(_SCANNED) for scan in scans]
    return [number for number, name in enumerate(names) if any(_is_listed(name, text) for text in lists)]


def _is_listed(name: str, text: str) -> bool:
    return any(text.startswith(name + after) or f", {name}{after}" in text for after in ("]", ", "))


def _quarter_of_memory() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 4


def _paths_in(plan: ExecutionPlan) -> set[str]:
    """The paths of the files that a physical plan opens, and more that are none. Empty when it cannot be told."""
    try:
        encoded = plan.to_bytes()
    except Exception:  # noqa: BLE001 - a plan without an encoded form names nothing
        return set()
    # A path follows its length, which may look like one more character.
    runs = [run.decode() for run in re.findall(rb"[\x21-\x7e]{3,}", encoded)]
    return {*runs, *(run[1:] for run in runs)}

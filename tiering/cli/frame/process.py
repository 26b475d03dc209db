"""The process of a command: what packages do by themselves in it, and it has no use for."""

from __future__ import annotations

import os
import sys

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
_BLOCK_BYTES = 64 * 1024 * 1024
"""Blocks up to this size are taken out of what was freed before."""
_EXTENSIONS = "typing_extensions"
_FREE_BYTES = 256 * 1024 * 1024
"""So much that is free is kept."""


class _WithoutPandas:
    """Has pyarrow work as where pandas is not installed: it would import it for its first array or scalar, to know
    values of it, of which a command line has none. That takes a quarter of a second and 40 MB. Spark needs it to call
    Python with Arrow's batches, and finds it."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Refuses `pandas`, and leaves the others to those who find them."""
        if name == "pandas" and "pyspark" not in sys.modules:
            raise ModuleNotFoundError("pandas is not used here", name=name)


def set_up() -> None:
    """Before pyarrow is imported. That imports numpy, which starts threads for linear algebra that nobody here
    computes: they spin for a tenth of a second of processor time."""
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    sys.meta_path.insert(0, _WithoutPandas())
    _import_msgspec()


def _import_msgspec() -> None:
    """Import it as where typing_extensions is not installed: it takes what this Python has itself, and leaves an import
    out that takes as long as its own. Code that needs that package later finds it."""
    if _EXTENSIONS in sys.modules:
        return
    sys.modules[_EXTENSIONS] = None  # type: ignore[assignment]  # as Python marks what is not to be found
    try:
        import msgspec  # noqa: F401
    finally:
        del sys.modules[_EXTENSIONS]


def keep_freed_blocks() -> None:
    """Have Python and Arrow take blocks of some megabytes out of what was freed before. Both give each back to the
    system, which clears the next one page by page: a fifth of an insert's processor time. Without effect where the C
    library has no such switch (mallopt(3) is glibc's). For a process that ends with what it reads."""
    import ctypes

    library = ctypes.CDLL(None) if sys.platform == "linux" else None
    if library is not None and hasattr(library, "mallopt"):
        library.mallopt(_M_MMAP_THRESHOLD, _BLOCK_BYTES)
        library.mallopt(_M_TRIM_THRESHOLD, _FREE_BYTES)
        import pyarrow as pa

        pa.set_memory_pool(pa.system_memory_pool())

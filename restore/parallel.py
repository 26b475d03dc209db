"""Many small requests side by side: the one loop for work that is all waiting."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor, as_completed


def in_parallel(work: Callable[[int], None], count: int, workers: int) -> None:
    """Do `work(0)` to `work(count - 1)` in threads. Raises the first error, after which nothing new begins."""
    numbers = iter(range(count))
    failed = threading.Event()

    def run() -> None:
        while not failed.is_set():
            number = next(numbers, None)
            if number is None:
                return
            try:
                work(number)
            except BaseException:
                failed.set()
                raise

    with ThreadPoolExecutor(max(1, min(workers, count)), thread_name_prefix="clickhouse") as pool:
        running = [pool.submit(run) for _ in range(min(workers, count))]
        try:
            for future in as_completed(running):
                future.result()
        finally:
            failed.set()

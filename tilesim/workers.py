"""Worker threads: kept from call to call, each released from the interpreter's lock while a kernel runs.

They are plain threads: no threading layer is involved, so several callers, forked processes and any number of
threads are all right.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor, wait

import numpy as np
import numpy.typing as npt

Progress = Callable[[int, int], None]
"""Called now and then from the calling thread with tasks done and tasks in all."""

MOST_THREADS = 1024
POLL_S = 0.05

_pool = ThreadPoolExecutor(MOST_THREADS, "tilesim")


def _begin_anew() -> None:
    """Forget the threads of the parent, of which a forked process has none."""
    global _pool
    _pool = ThreadPoolExecutor(MOST_THREADS, "tilesim")


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def run_workers(
    workers: int,
    total: int,
    progress: Progress | None,
    work: Callable[[npt.NDArray[np.int64]], None],
) -> None:
    """Run `work` in that many threads on shared counters, `total` tasks in all, and wait for all of them.

    An exception, Ctrl-C included, stops all workers after the task at hand. Unless there is just
    one task, the calling thread only watches, so that it can be interrupted.
    """
    from tilesim.kernels.counter import COUNTERS, DONE_TASKS, STOPPED

    counter = np.zeros(COUNTERS, np.int64)
    if workers == 1 and total == 1 and progress is None:
        work(counter)
        return

    def guarded() -> None:
        try:
            work(counter)
        except BaseException:
            counter[STOPPED] = 1
            raise

    running: list[Future[None]] = []
    try:
        for _ in range(workers):
            try:
                running.append(_pool.submit(guarded))
            except RuntimeError:
                # No thread can start, or none any more as the interpreter is ending: the caller does it.
                guarded()
                break
        left = set(running)
        while left:
            _, left = wait(left, POLL_S)
            if progress is not None and counter[DONE_TASKS] < total:
                progress(int(counter[DONE_TASKS]), total)
    except BaseException:
        counter[STOPPED] = 1
        wait(running)
        raise
    for future in running:
        future.result()
    if progress is not None:
        progress(total, total)

"""Worker threads: kept from call to call, each released from the interpreter's lock while a kernel runs.

They are plain threads: no threading layer is involved, so several callers, forked processes and any number of
threads are all right.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

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


class _Shift:
    """The workers of one call: it ends when one has found no more work and all who began are done.

    Nobody begins after the end: the pool may keep what it could not start, and start it long after the call.
    """

    def __init__(self, work: Callable[[npt.NDArray[np.int64]], None]) -> None:
        from tilesim.kernels.counter import COUNTERS

        self.counter = np.zeros(COUNTERS, np.int64)
        self._work = work
        self._changed = threading.Condition()
        self._inside = self._ended = 0
        self._over = False
        self._error: BaseException | None = None

    def take_part(self) -> None:
        """Do one worker's part in the calling thread."""
        with self._changed:
            if self._over:
                return
            self._inside += 1
        try:
            self._work(self.counter)
        except BaseException as error:
            self.stop()
            self._error = self._error or error
        with self._changed:
            self._inside -= 1
            self._ended += 1
            self._changed.notify_all()

    def take_part_as_caller(self) -> None:
        """Do one worker's part without ado: what it raises, Ctrl-C included, comes out here."""
        self._work(self.counter)
        with self._changed:
            self._ended += 1

    def stop(self) -> None:
        """Let all workers end after the task at hand."""
        from tilesim.kernels.counter import STOPPED

        self.counter[STOPPED] = 1

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end, or for some time, and return whether it has come."""
        with self._changed:
            self._over = self._changed.wait_for(lambda: self._ended > 0 == self._inside, timeout_s)
            return self._over

    def close(self) -> None:
        """Let nobody begin any more and wait, Ctrl-C or not, for those who have: they use shared storage."""
        while True:
            with contextlib.suppress(KeyboardInterrupt), self._changed:
                self._over = True
                self._changed.wait_for(lambda: not self._inside)
                return

    def raise_error(self) -> None:
        """Raise what a worker raised, if any did."""
        if self._error is not None:
            raise self._error


def run_workers(
    workers: int,
    total: int,
    progress: Progress | None,
    work: Callable[[npt.NDArray[np.int64]], None],
    *,
    brief: bool = False,
) -> None:
    """Run `work` in that many threads on shared counters, `total` tasks in all, and wait for all of them.

    An exception, Ctrl-C included, stops all workers after the task at hand. The calling thread only watches,
    so that it can be interrupted; if the work is `brief` and nobody watches, it is one of the workers.
    """
    from tilesim.kernels.counter import DONE_TASKS

    shift = _Shift(work)
    counter = shift.counter
    caller_works = brief and progress is None
    try:
        for _ in range(workers - caller_works):
            try:
                _pool.submit(shift.take_part)
            except RuntimeError:
                # No thread can start, or none any more as the interpreter is ending: the caller does it.
                shift.take_part()
                break
        if caller_works:
            shift.take_part_as_caller()
        while not shift.wait(POLL_S):
            if progress is not None and counter[DONE_TASKS] < total:
                progress(int(counter[DONE_TASKS]), total)
    except BaseException:
        shift.stop()
        shift.close()
        raise
    shift.raise_error()
    if progress is not None:
        progress(total, total)

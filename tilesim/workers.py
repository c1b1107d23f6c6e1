"""Worker threads: kept from call to call, each released from the interpreter's lock while a kernel runs.

They are plain threads: no threading layer is involved, so several callers, forked processes and any number of
threads are all right. Only a process forked while another thread makes the first call of all finds Python's
import locks taken: call `engine.warm_up` before.
"""

from __future__ import annotations

import _thread
import contextlib
import os
import sys
from collections.abc import Callable
from queue import Empty, SimpleQueue

import numpy as np
import numpy.typing as npt

from tilesim.placement import Placement, Seat

Progress = Callable[[int, int], None]
"""Called now and then from the calling thread with tasks done and tasks in all."""

MOST_THREADS = 1024
POLL_S = 0.05
PATIENCE_S = 1.0
"""After that long without any worker at work the calling thread does the work."""

# No locks, here and below: Ctrl-C between taking and holding one would leave it taken, and a signal handler
# may call tilesim wherever another call is. What is appended, put or fetched is so as a whole.


class _Pool:
    """Threads that wait for work, each for good; more are started when too few are waiting."""

    def __init__(self) -> None:
        self._tasks: SimpleQueue[_Shift] = SimpleQueue()
        self._idle: dict[Seat, None] = {}
        """Threads that wait or are about to. Only they themselves, whom no signal reaches, change it, so that
        it stays right wherever a caller is interrupted."""

    def submit(self, shift: _Shift, workers: int) -> bool:
        """Let threads take part in a shift; return whether all of them could be started."""
        waiting = list(self._idle)
        shift.placement.prepare(waiting)
        idle = len(waiting) - self._tasks.qsize()
        for number in range(workers):
            if number >= idle and not self._start():
                return False
            self._tasks.put(shift)
        return True

    def _start(self) -> bool:
        try:
            _thread.start_new_thread(self._serve, ())
        except RuntimeError:
            return False
        return True

    def _serve(self) -> None:
        me = Seat()

        def wait_again() -> None:
            self._idle[me] = None

        wait_again()
        try:
            while True:
                shift = self._tasks.get()
                self._idle.pop(me)
                shift.placement.settle(me)
                # Idle before the caller hears of the end, who may come back at once.
                shift.take_part(before_end=wait_again)
                # A waiting thread must not keep the tensors of its last call.
                del shift
        finally:
            self._idle.pop(me, None)


_pool = _Pool()


def _begin_anew() -> None:
    """Forget the threads of the parent, of which a forked process has none."""
    global _pool
    _pool = _Pool()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


class _Shift:
    """The workers of one call: it ends when one has found no more work and all who began are done.

    Nobody begins after the end: a thread may come to it long after the call.
    """

    def __init__(self, work: Callable[[npt.NDArray[np.int64]], None], placement: Placement) -> None:
        from tilesim.kernels.counter import COUNTERS

        self.placement = placement
        self.counter = np.zeros(COUNTERS, np.int64)
        self._work = work
        self._begun: list[None] = []
        self._ended: list[None] = []
        self._errors: list[BaseException] = []
        self._over = False
        self._changes: SimpleQueue[None] = SimpleQueue()

    def take_part(self, before_end: Callable[[], None]) -> None:
        """Do one worker's part in a thread of the pool; what the work raises comes out in the caller."""
        # First this, then the look whether it is over: who ends the shift looks the other way round.
        self._begun.append(None)
        try:
            try:
                if not self._over:
                    self._work(self.counter)
            except BaseException as error:
                self.stop()
                self._errors.append(error)
            before_end()
        finally:
            self._ended.append(None)
            self._changes.put(None)

    def take_part_as_caller(self) -> None:
        """Do one worker's part in the calling thread: what it raises, Ctrl-C included, comes out here."""
        self._work(self.counter)
        self._over = True

    def stop(self) -> None:
        """Let all workers end after the task at hand."""
        from tilesim.kernels.counter import STOPPED

        self.counter[STOPPED] = 1

    def has_begun(self) -> bool:
        """Return whether any thread of the pool has come to it."""
        return bool(self._begun)

    def has_ended(self) -> bool:
        """Return whether nobody is at work or can begin any more."""
        if self._ended:
            self._over = True
        return self._over and len(self._ended) == len(self._begun)

    def wait(self, timeout_s: float) -> None:
        """Wait for a worker to end, or for some time."""
        with contextlib.suppress(Empty):
            self._changes.get(timeout=timeout_s)

    def close(self) -> None:
        """Let nobody begin any more and wait, Ctrl-C or not, for those who have: they use shared storage."""
        self._over = True
        while not self.has_ended():
            with contextlib.suppress(BaseException):
                self.wait(POLL_S)

    def raise_error(self) -> None:
        """Raise what a worker raised, if any did."""
        if self._errors:
            raise self._errors[0]


def run_workers(
    workers: int,
    total: int,
    progress: Progress | None,
    work: Callable[[npt.NDArray[np.int64]], None],
    *,
    brief: bool = False,
) -> None:
    """Run `work` in that many threads on shared counters, `total` tasks in all, and wait for all of them.

    An exception, Ctrl-C included, stops all workers after the task at hand. If the work is `brief` or just
    one task, and nobody asks for progress, the calling thread is one of the workers and an interrupt waits
    for the end: waking a thread takes as long as a small task. Else it only watches.
    """
    from tilesim.kernels.counter import DONE_TASKS

    takes_part = (brief or total <= 1) and progress is None
    shift = _Shift(work, Placement(workers, caller_takes_part=takes_part))
    counter = shift.counter
    try:
        # As the interpreter ends, threads of the pool stand still for good.
        others = not sys.is_finalizing() and _pool.submit(shift, workers - takes_part)
        if takes_part or not others:
            shift.take_part_as_caller()
        patience = PATIENCE_S / POLL_S
        while not shift.has_ended():
            shift.wait(POLL_S)
            patience -= 1
            if patience < 0 and not shift.has_begun():
                shift.take_part_as_caller()
            if progress is not None and counter[DONE_TASKS] < total:
                progress(int(counter[DONE_TASKS]), total)
    except BaseException:
        try:
            shift.stop()
        finally:
            shift.close()
        raise
    shift.raise_error()
    if progress is not None:
        progress(total, total)

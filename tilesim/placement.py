"""Which processor each worker of a call runs on, where there is one for every worker.

Linux may wake a thread on the processor of the caller and leave another one idle, going by how busy it last
saw them: the two take turns, and the call takes up to twice as long. So where the workers are as many as the
processors that the caller may use, each is given one. With fewer or more workers, and on other systems, the
system decides.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import itertools
import os
import sys
import threading
from collections.abc import Iterable


class Seat:
    """Where a thread may run: anywhere that it was born to, or on one processor. Made by that very thread."""

    def __init__(self) -> None:
        self._thread = threading.get_native_id()
        self._home = _allowed()
        self._now: frozenset[int] | None = self._home

    @property
    def processor(self) -> int | None:
        """The one processor, if it is just one."""
        return next(iter(self._now)) if self._now and len(self._now) == 1 else None

    def move(self, processor: int | None) -> None:
        """Let the thread run on that processor only, or anywhere again."""
        wanted = self._home if processor is None else frozenset((processor,))
        if wanted != self._now:
            # Unknown, should an interrupt or a refusal come between.
            self._now = None
            with contextlib.suppress(OSError):
                _allow(self._thread, wanted)
                self._now = wanted


class Placement:
    """The processors of the workers of one call, the calling thread among them or only watching."""

    def __init__(self, workers: int, *, caller_takes_part: bool) -> None:
        self._free: list[int] = []
        allowed = _allowed() if workers > 1 else frozenset()
        callers = _current() if caller_takes_part else None
        if len(allowed) == workers and (callers in allowed or not caller_takes_part):
            self._free = sorted(allowed - {callers})

    def prepare(self, seats: Iterable[Seat]) -> None:
        """Move threads that wait, so that they wake where they are to run, whichever of them do."""
        for seat, processor in zip(seats, itertools.cycle(self._free or [None]), strict=False):
            seat.move(processor)

    def settle(self, seat: Seat) -> None:
        """Give the thread that calls this a processor which no other worker of the call has."""
        wanted = seat.processor
        with contextlib.suppress(ValueError, IndexError):
            # Each a single step: others do the same.
            if wanted in self._free:
                self._free.remove(wanted)
            else:
                wanted = self._free.pop()
            seat.move(wanted)
            return
        seat.move(None)


if sys.platform == "linux":

    def _allowed() -> frozenset[int]:
        return frozenset(os.sched_getaffinity(0))

    def _allow(thread: int, processors: frozenset[int]) -> None:
        os.sched_setaffinity(thread, processors)

    @functools.cache
    def _function() -> ctypes._NamedFuncPointer | None:
        return getattr(ctypes.CDLL(None), "sched_getcpu", None)

    def _current() -> int | None:
        function = _function()
        return None if function is None else int(function())

else:

    def _allowed() -> frozenset[int]:
        return frozenset()

    def _allow(thread: int, processors: frozenset[int]) -> None:
        pass

    def _current() -> int | None:
        return None

"""Storage that outlives a call: the system clears fresh memory, which takes as long as using it."""

from __future__ import annotations

import collections
import contextlib
import math
import os
import threading
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

MOST_BYTES = 64 * 1024**2
"""Kept between calls at most; what is larger goes back to the system at once."""
CACHE_LINE_BYTES = 64

LEAST_LENT_BYTES, MOST_LENT_BYTES = 128 * 1024, MOST_BYTES // 4
"""Of results whose storage is kept when it comes back: smaller ones come cheaply, larger ones take room."""

PATIENCE_S = 0.05
"""After which a call does without kept storage: it may run in a signal handler that interrupted `take`."""

_lock = threading.Lock()
_kept: list[npt.NDArray[np.float32]] = []
_returned: collections.deque[npt.NDArray[np.float32]] = collections.deque(maxlen=4)
"""What results have let go: without a lock, since that may happen anywhere, even within `take`."""


@contextlib.contextmanager
def _patiently() -> Iterator[bool]:
    """Hold the lock if it can be had in time, and say whether it is held."""
    locked = _lock.acquire(timeout=PATIENCE_S)
    try:
        yield locked
    finally:
        if locked:
            _lock.release()


def _begin_anew() -> None:
    """Forget a lock that another thread of the parent may have held as the process was forked."""
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_anew)


def take(size: int) -> npt.NDArray[np.float32]:
    """Return float32 storage of at least `size` elements on a cache line, its content arbitrary."""
    with contextlib.suppress(IndexError):
        while True:
            give_back(_returned.popleft())
    with _patiently() as locked:
        fitting = [index for index, array in enumerate(_kept) if size <= array.size <= 2 * size + 4096]
        if locked and fitting:
            return _kept.pop(min(fitting, key=lambda index: _kept[index].size))
    return aligned(size)


def give_back(array: npt.NDArray[np.float32]) -> None:
    """Keep storage for a later call; the caller must not use it any more."""
    with _patiently() as locked:
        if not locked:
            return
        _kept.append(array)
        while sum(kept.nbytes for kept in _kept) > MOST_BYTES:
            _kept.pop(0)


def aligned(size: int) -> npt.NDArray[np.float32]:
    """Return fresh float32 storage that starts on a cache line."""
    spare = CACHE_LINE_BYTES // 4
    raw = np.empty(size + spare, np.float32)
    skip = -raw.ctypes.data % CACHE_LINE_BYTES // 4
    return raw[skip : skip + size]


class _Loan:
    """Owner of storage in the eyes of NumPy: gives it back once no array looks at it any more."""

    def __init__(self, storage: npt.NDArray[np.float32]) -> None:
        self._storage = storage
        self.__array_interface__ = storage.__array_interface__

    def __del__(self) -> None:
        _returned.append(self._storage)


def lend(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return a float32 array, its content arbitrary, whose storage is used again when it is gone."""
    size = math.prod(shape)
    if not LEAST_LENT_BYTES <= 4 * size <= MOST_LENT_BYTES:
        return np.empty(shape, np.float32)
    return np.asarray(_Loan(take(size)))[:size].reshape(shape)

"""Storage that outlives a call: the system clears fresh memory, which takes as long as using it."""

from __future__ import annotations

import threading

import numpy as np
import numpy.typing as npt

MOST_BYTES = 64 * 1024**2
"""Kept between calls at most; what is larger goes back to the system at once."""
CACHE_LINE_BYTES = 64

_lock = threading.Lock()
_kept: list[npt.NDArray[np.float32]] = []


def take(size: int) -> npt.NDArray[np.float32]:
    """Return float32 storage of at least `size` elements on a cache line, its content arbitrary."""
    with _lock:
        fitting = [index for index, array in enumerate(_kept) if size <= array.size <= 2 * size + 4096]
        if fitting:
            return _kept.pop(min(fitting, key=lambda index: _kept[index].size))
    return aligned(size)


def give_back(array: npt.NDArray[np.float32]) -> None:
    """Keep storage for a later call; the caller must not use it any more."""
    with _lock:
        _kept.append(array)
        while sum(kept.nbytes for kept in _kept) > MOST_BYTES:
            _kept.pop(0)


def aligned(size: int) -> npt.NDArray[np.float32]:
    """Return fresh float32 storage that starts on a cache line."""
    spare = CACHE_LINE_BYTES // 4
    raw = np.empty(size + spare, np.float32)
    skip = -raw.ctypes.data % CACHE_LINE_BYTES // 4
    return raw[skip : skip + size]

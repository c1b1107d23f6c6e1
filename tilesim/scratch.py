"""Storage that outlives a call: the system clears fresh memory, which takes as long as using it."""

from __future__ import annotations

import collections
import contextlib
import math

import numpy as np
import numpy.typing as npt

MOST_BYTES = 64 * 1024**2
"""Kept between calls at most; what is larger goes back to the system at once."""
CACHE_LINE_BYTES = 64

LEAST_LENT_BYTES, MOST_LENT_BYTES = 128 * 1024, MOST_BYTES // 4
"""Of results whose storage is kept when it comes back: smaller ones come cheaply, larger ones take room."""

# No locks: a call may be interrupted, or run in a signal handler or a forked process, wherever another is.
# Each step happens as a whole, whatever other threads do.
_kept: dict[int, npt.NDArray[np.float32]] = {}
"""By `id`, oldest first."""
_returned: collections.deque[npt.NDArray[np.float32]] = collections.deque(maxlen=4)
"""What results have let go: that may happen anywhere, even within `take`."""


def take(size: int) -> npt.NDArray[np.float32]:
    """Return float32 storage of at least `size` elements on a cache line, its content arbitrary."""
    with contextlib.suppress(IndexError):
        while True:
            give_back(_returned.popleft())
    # Not `items`: a tuple for each could begin a garbage collection, whose finalisers may come here.
    fitting = [(kept.size, id(kept)) for kept in list(_kept.values()) if size <= kept.size <= 2 * size + 4096]
    for _, key in sorted(fitting):
        # Another thread may have been quicker.
        storage = _kept.pop(key, None)
        if storage is not None and storage.size >= size:
            return storage
    return aligned(size)


def give_back(array: npt.NDArray[np.float32]) -> None:
    """Keep storage for a later call; the caller must not use it any more."""
    _kept[id(array)] = array
    while sum(kept.nbytes for kept in list(_kept.values())) > MOST_BYTES:
        for oldest in list(_kept)[:1]:
            _kept.pop(oldest, None)


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
        # Without storage if Ctrl-C came before it had any.
        if hasattr(self, "_storage"):
            _returned.append(self._storage)


def lend(shape: tuple[int, ...]) -> npt.NDArray[np.float32]:
    """Return a float32 array, its content arbitrary, whose storage is used again when it is gone."""
    size = math.prod(shape)
    if not LEAST_LENT_BYTES <= 4 * size <= MOST_LENT_BYTES:
        return np.empty(shape, np.float32)
    return np.asarray(_Loan(take(size)))[:size].reshape(shape)

"""What a running kernel really holds: storage at the planned offsets, a running peak, poison on free.

Each memory is one arena of the planned size. A buffer that is opened gets views into it at its planned
offset, so that a plan that let two live buffers overlap would be caught, and what is read from a buffer that
was closed, or never filled, is NaN if poison is on.
"""

from __future__ import annotations

import math
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from tilesim.errors import InputError, TilesimError
from tilesim.memory.budget import Budget, MemoryBudget
from tilesim.memory.buffers import ALIGNMENT_BYTES, Buffer
from tilesim.units import align_up

NUMPY_TYPES = {
    "half": np.dtype(np.float16),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "float": np.dtype(np.float32),
    "byte": np.dtype(np.uint8),
}

POISON = 0xFF
"""Byte whose repetition is NaN in half, bfloat16 and float."""


class MemoryUseError(TilesimError):
    """A kernel used a memory against its plan: too much, twice, or what is not open."""


class Arena:
    """One memory while a kernel runs.

    Attributes
    ----------
    peak_bytes : int
        Most bytes that were open at the same time.
    peak_buffers : tuple of str
        Names of the buffers that were open then.
    """

    def __init__(self, memory: MemoryBudget, *, poison: bool) -> None:
        self.name = memory.name
        self.peak_bytes = 0
        self.peak_buffers: tuple[str, ...] = ()
        self._poison = poison
        self._planned = {buffer.name: buffer for buffer in memory.buffers}
        self._storage = np.empty(memory.peak_bytes, np.uint8)
        self._open: dict[str, int] = {}
        if poison:
            self._storage.fill(POISON)

    @property
    def live_bytes(self) -> int:
        """Bytes that are open now."""
        return sum(self._open.values())

    def planned(self, name: str) -> Buffer:
        """Return a buffer of the plan."""
        return self._planned[name]

    def open(self, name: str, shape: tuple[int, ...] | None = None) -> list[npt.NDArray[Any]]:
        """Return the storage of a planned buffer: one array for each of its copies.

        Parameters
        ----------
        name : str
            Name in the plan.
        shape : tuple of int, optional
            Elements needed now, at most the planned ones; all of them by default.

        Raises
        ------
        MemoryUseError
            If the buffer is open already, is larger than planned, or lies where another open one lies.
        """
        planned = self._planned[name]
        wanted = planned.shape if shape is None else shape
        dtype = NUMPY_TYPES[planned.dtype]
        size_bytes = align_up(math.prod(wanted) * dtype.itemsize, ALIGNMENT_BYTES[self.name])
        where = f"{self.name} buffer {name!r}"
        if name in self._open:
            raise MemoryUseError(where, "opened twice", "must be closed before it is opened again")
        if size_bytes > planned.bytes_each:
            raise MemoryUseError(
                where, size_bytes, f"must take at most the planned {planned.bytes_each} bytes"
            )
        for other in self._open:
            if _overlap(planned, self._planned[other]):
                raise MemoryUseError(where, "opened", f"lies where {other!r} lies, which is still open")
        self._open[name] = planned.count * size_bytes
        if self.live_bytes > self.peak_bytes:
            self.peak_bytes, self.peak_buffers = self.live_bytes, tuple(self._open)
        starts = [planned.offset_bytes + copy * planned.bytes_each for copy in range(planned.count)]
        used = math.prod(wanted) * dtype.itemsize
        return [self._storage[start : start + used].view(dtype).reshape(wanted) for start in starts]

    def close(self, name: str) -> None:
        """Give the room of a buffer back; its content is lost.

        Raises
        ------
        MemoryUseError
            If it is not open.
        """
        if name not in self._open:
            raise MemoryUseError(f"{self.name} buffer {name!r}", "closed", "must be open")
        del self._open[name]
        if self._poison:
            planned = self._planned[name]
            self._storage[planned.offset_bytes : planned.offset_bytes + planned.total_bytes] = POISON


def _overlap(a: Buffer, b: Buffer) -> bool:
    return a.offset_bytes < b.offset_bytes + b.total_bytes and b.offset_bytes < a.offset_bytes + a.total_bytes


class Tracker:
    """The memories of one launch while it runs.

    Parameters
    ----------
    budget : Budget
        The plan whose offsets are used.
    poison : bool
        Fill storage with NaN before it is first used and after it is given back.
    """

    def __init__(self, budget: Budget, *, poison: bool = False) -> None:
        self._arenas = {name: Arena(memory, poison=poison) for name, memory in budget.memories.items()}

    def __getitem__(self, memory: str) -> Arena:
        if memory not in self._arenas:
            raise InputError("memory", memory, "must be one of " + ", ".join(self._arenas))
        return self._arenas[memory]

    @property
    def peak_bytes(self) -> dict[str, int]:
        """Memory name -> most bytes that were open at the same time."""
        return {name: arena.peak_bytes for name, arena in self._arenas.items()}

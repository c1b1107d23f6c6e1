"""Where buffers go: lifetimes in, offsets and peak out; pure, knows nothing of attention or chips."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from tilesim._checks import whole_number
from tilesim.errors import ConfigError
from tilesim.units import align_up


@dataclasses.dataclass(frozen=True, kw_only=True)
class Lifetime:
    """A piece of memory and the stages that need it.

    Attributes
    ----------
    size_bytes : int
        Bytes it takes; 0 is allowed.
    first, last : int
        First and last stage of use, both inclusive, counted from 0.

    Raises
    ------
    ConfigError
        If a number is no integer >= 0 or `last` comes before `first`.
    """

    size_bytes: int
    first: int
    last: int

    def __post_init__(self) -> None:
        for name in ("size_bytes", "first", "last"):
            object.__setattr__(self, name, whole_number(f"Lifetime.{name}", getattr(self, name), least=0))
        if self.last < self.first:
            raise ConfigError("Lifetime.last", self.last, f"must be at least first, which is {self.first}")

    def overlaps(self, other: Lifetime) -> bool:
        """Return whether some stage needs both."""
        return self.first <= other.last and other.first <= self.last


@dataclasses.dataclass(frozen=True, kw_only=True)
class Plan:
    """Offsets at which lifetimes share one memory, dead ones making room for later ones.

    Attributes
    ----------
    offsets_bytes : tuple of int
        Offset of each lifetime, in the order given.
    peak_bytes : int
        Bytes the memory must have: the largest end of any of them.
    live_bytes : tuple of int
        Bytes in use at each stage, up to the last one anybody uses; no plan has a peak below their maximum.
    """

    offsets_bytes: tuple[int, ...]
    peak_bytes: int
    live_bytes: tuple[int, ...]


def plan(lifetimes: Sequence[Lifetime], alignment_bytes: int = 1) -> Plan:
    """Place lifetimes so that no two that live at the same stage overlap.

    Each one is put at the lowest offset that is free for all its stages, in three orders: the largest
    first, the longest-lived first, the earliest first. The lowest peak wins, the first of equals. It is never
    above the plain sum of the aligned sizes, but may be above the best that exists: finding that is NP-hard.

    Parameters
    ----------
    lifetimes : sequence of Lifetime
        What to place.
    alignment_bytes : int
        Every offset is a multiple of it, and every size is rounded up to one.

    Raises
    ------
    ConfigError
        If `alignment_bytes` is no integer >= 1.
    """
    whole_number("alignment_bytes", alignment_bytes)
    sizes = [align_up(life.size_bytes, alignment_bytes) for life in lifetimes]
    indices = range(len(lifetimes))
    if len({(life.first, life.last) for life in lifetimes}) == 1:
        # All live together: one behind the other, as the largest first would lie as well.
        orders: tuple[list[int], ...] = (sorted(indices, key=lambda i: (-sizes[i], i)),)
        return _result(lifetimes, sizes, [_stacked(sizes, orders[0])])
    orders = (
        sorted(indices, key=lambda i: (-sizes[i], lifetimes[i].first, i)),
        sorted(indices, key=lambda i: (lifetimes[i].first - lifetimes[i].last, -sizes[i], i)),
        sorted(indices, key=lambda i: (lifetimes[i].first, -sizes[i], i)),
    )
    return _result(lifetimes, sizes, [_place(lifetimes, sizes, order) for order in orders])


def _stacked(sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    offsets, end = [0] * len(sizes), 0
    for index in order:
        offsets[index] = end
        end += sizes[index]
    return offsets


def _result(lifetimes: Sequence[Lifetime], sizes: Sequence[int], attempts: list[list[int]]) -> Plan:
    peaks = [max((offset + size for offset, size in zip(a, sizes, strict=True)), default=0) for a in attempts]
    peak_bytes = min(peaks)
    stages = range(max((life.last + 1 for life in lifetimes), default=0))
    live = tuple(
        sum(size for life, size in zip(lifetimes, sizes, strict=True) if life.first <= stage <= life.last)
        for stage in stages
    )
    offsets = attempts[peaks.index(peak_bytes)]
    return Plan(offsets_bytes=tuple(offsets), peak_bytes=peak_bytes, live_bytes=live)


def _place(lifetimes: Sequence[Lifetime], sizes: Sequence[int], order: Sequence[int]) -> list[int]:
    offsets = [0] * len(lifetimes)
    placed: list[int] = []
    for index in order:
        neighbours = sorted(
            (offsets[other], offsets[other] + sizes[other])
            for other in placed
            if lifetimes[other].overlaps(lifetimes[index])
        )
        offset = 0
        for start, end in neighbours:
            if offset + sizes[index] <= start:
                break
            offset = max(offset, end)
        offsets[index] = offset
        placed.append(index)
    return offsets

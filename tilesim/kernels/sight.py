"""Which keys the rows of a task see, tile by tile."""

from __future__ import annotations

from typing import Any, NamedTuple

from tilesim.kernels._jit import jit, jit_apart
from tilesim.kernels.variant import NO_MASK, ScoreVariant, mask_row, narrow_to_mask


class Sight(NamedTuple):
    """Which keys a query row sees: those from ``position + shift - left`` to ``position + shift + right``.

    Rows of several query heads that share keys may follow each other: row r is that at position ``r % seq_q``
    of query head ``first_head + r // seq_q``.

    Attributes
    ----------
    shift : int
        Key position of a query at position 0.
    left, right : int
        Keys visible before and after the own position.
    length : int
        Number of keys that count.
    seq_q : int
        Query rows of one head.
    first_head : int
        Query head of row 0, counted over the whole batch.
    """

    shift: Any
    left: Any
    right: Any
    length: Any
    seq_q: Any
    first_head: Any


class Launch(NamedTuple):
    """What all tasks of a launch share.

    Attributes
    ----------
    left, right : int
        As in `Sight`.
    shifts, lengths : int64 arrays
        ``Sight.shift`` and ``Sight.length`` of each row of heads, see `attention_worker`.
    seq_q, group : int
        Query rows of a head, and query heads whose rows follow each other.
    kv_head_of : int64 array
        Key head of each row of heads.
    """

    left: Any
    right: Any
    shifts: Any
    lengths: Any
    seq_q: Any
    group: Any
    kv_head_of: Any


class Bounds(NamedTuple):
    """What each row of a group sees of the current tile.

    Attributes
    ----------
    start, stop : int64 arrays
        First column seen and the one after the last.
    """

    start: Any
    stop: Any


@jit
def _visible(
    head: Any, position: Any, sight: Sight, variant: ScoreVariant | None, low: Any, high: Any, data_kind: Any
) -> Any:
    """Return the keys that one query sees among keys low ... high - 1, counted from `low`."""
    own = position + sight.shift
    start = min(max(own - sight.left, low), high)
    stop = max(start, min(max(own + sight.right + 1, low), high))
    if variant is not None and variant.mask.kind != NO_MASK:
        row = mask_row(variant.mask, head, position)
        start, stop = narrow_to_mask(variant.mask, row, start, stop, data_kind)
    return start - low, stop - low


@jit_apart
def see(
    first_row: Any, rows: Any, low: Any, columns: Any, sight: Sight, variant: ScoreVariant | None,
    data_kind: Any, bounds: Bounds,
) -> Any:  # fmt: skip
    """Note which columns of a tile each row of the group sees; return whether any row sees one."""
    seen = False
    head, position = sight.first_head + first_row // sight.seq_q, first_row % sight.seq_q
    for row in range(rows):
        start, stop = _visible(head, position, sight, variant, low, low + columns, data_kind)
        bounds.start[row], bounds.stop[row] = start, stop
        seen |= stop > start
        # Not by division, which would take as long as all the rest.
        position += 1
        if position == sight.seq_q:
            head, position = head + 1, 0
    return seen


@jit_apart
def sees_tile(
    top: Any, rows: Any, low: Any, columns: Any, sight: Sight, variant: ScoreVariant | None, data_kind: Any,
    bounds: Bounds,
) -> Any:  # fmt: skip
    """Return whether any row of a task sees a key of a tile."""
    for first_row in range(0, rows, bounds.start.size):
        count = min(bounds.start.size, rows - first_row)
        if see(top + first_row, count, low, columns, sight, variant, data_kind, bounds):
            return True
    return False


@jit
def seen_by_any(bounds: Bounds, rows: Any) -> Any:
    """Return the range of columns that any row of the group sees."""
    least, most = bounds.start[0], bounds.stop[0]
    for row in range(1, rows):
        least, most = min(least, bounds.start[row]), max(most, bounds.stop[row])
    return least, most

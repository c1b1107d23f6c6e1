"""Which score tiles a mask tensor leaves full, partial or empty, and how many pairs it shows."""

from __future__ import annotations

from typing import Any

from tilesim.kernels._jit import jit_apart, jit_entry
from tilesim.kernels.variant import BOOL_MASK, NO_MASK, MaskTensor, hides, mask_row

SKIPPED, PARTIAL, FULL = range(3)


@jit_apart
def _shown(mask: MaskTensor, head: Any, row: Any, start: Any, stop: Any, data_kind: Any) -> Any:
    """Return how many keys of ``start ... stop - 1`` the mask shows to one query."""
    if mask.kind == NO_MASK:
        return max(stop - start, 0)
    address = mask_row(mask, head, row)
    count = 0
    for key in range(start, stop):
        if not hides(mask, address, key, data_kind):
            count += 1
    return count


@jit_entry
def classify_groups(
    mask: MaskTensor, head: Any, starts: Any, stops: Any, first_rows: Any, last_rows: Any, seq_kv: Any,
    kv_tile: Any, data_kind: Any, kinds: Any,
) -> Any:  # fmt: skip
    """Note what each tile of each group of rows of one head holds; return the visible pairs.

    Parameters
    ----------
    mask : MaskTensor
    head : int
        Query head, counted over the whole batch.
    starts, stops : int64 arrays (seq_q)
        Keys that the named mask and the lengths let each row see.
    first_rows, last_rows : int64 arrays (groups)
        First and last row of each group; a group whose last row is before its first one is empty.
    seq_kv, kv_tile : int
    data_kind : int
        Kind of `rounding.py` in which an additive mask counts.
    kinds : uint8 array (groups, tiles)
        `SKIPPED`, `PARTIAL` or `FULL`; an additive mask is added wherever it shows a key, hence never full.
    """
    pairs = 0
    for group in range(kinds.shape[0]):
        rows = max(last_rows[group] - first_rows[group] + 1, 0)
        for tile in range(kinds.shape[1]):
            low = tile * kv_tile
            high = min(low + kv_tile, seq_kv)
            shown = 0
            for row in range(first_rows[group], last_rows[group] + 1):
                shown += _shown(mask, head, row, max(starts[row], low), min(stops[row], high), data_kind)
            whole = shown == rows * (high - low) and (mask.kind == BOOL_MASK or mask.kind == NO_MASK)
            kinds[group, tile] = SKIPPED if shown == 0 else FULL if whole else PARTIAL
            pairs += shown
    return pairs

"""Products of a few query rows with keys and values as they lie in memory: what decoding needs.

Nothing is packed beyond one panel of keys, so that each key and value is read once, and values in the order
in which they lie. The sums are those of `vector.multiply_block`, bit for bit.
"""

from __future__ import annotations

from typing import Any

from tilesim.kernels._jit import jit, jit_apart
from tilesim.kernels.packing import pack_keys
from tilesim.kernels.processor import BLOCK
from tilesim.kernels.rounding import EVEN_FORMULAS, FLOAT_KIND
from tilesim.kernels.vector import CACHE_LINE, PANEL_COLUMNS, few_rows_multiplier, prefetch_far

MOST_ROWS = 4
"""Rows up to which this pays."""
_NARROW = 4 if BLOCK.lanes == 16 else 2
VALUE_COLUMNS = BLOCK.lanes * _NARROW
"""Value columns taken at a time; head_dim_v must be a multiple of it."""
_WIDE_COLUMNS = 2 * VALUE_COLUMNS
_WHOLE_ROWS = BLOCK.lanes == 16
"""Whether `_WIDE_COLUMNS`, then 128, are mostly a whole row of values: these are read in order anyway."""
KEY_BLOCK = 16 if _WHOLE_ROWS else 4
"""Values are taken that many keys at a time, which stay in the nearest cache for all rows and columns: few
where columns are too, since memory that is read in order answers up to twice as fast."""
AHEAD = 2048
"""Numbers between the values that are read and those asked for."""

_AS_IS = {FLOAT_KIND: EVEN_FORMULAS[FLOAT_KIND]}
_keys_1, _keys_2, _keys_4 = (few_rows_multiplier(rows, BLOCK.vectors, _AS_IS) for rows in (1, 2, 4))
_narrow_1, _narrow_2 = (few_rows_multiplier(rows, _NARROW, EVEN_FORMULAS) for rows in (1, 2))
_wide_1, _wide_2 = (few_rows_multiplier(rows, 2 * _NARROW, EVEN_FORMULAS) for rows in (1, 2))


@jit_apart
def multiply_keys(
    products: Any, stride: Any, queries: Any, rows: Any, keys: Any, first: Any, count: Any, panel: Any,
    kind: Any,
) -> None:  # fmt: skip
    """Store the products of up to `MOST_ROWS` queries with keys ``first ... first + count - 1``.

    Parameters
    ----------
    products : float32 array (1-D)
        At row pitch `stride`; whole panels are written.
    queries : float32 array (1-D)
        `MOST_ROWS` rows of head_dim, zeros in those that do not count.
    rows : int
    keys : float32 array (keys, head_dim), C order
    panel : float32 array
        Scratch for one panel.
    kind : int
        Kind of `rounding.py` to which keys are rounded.
    """
    depth = keys.shape[1]
    for at in range(0, count, PANEL_COLUMNS):
        pack_keys(keys[: first + count], first + at, panel, kind)
        for row in range(rows):
            products[row * stride + at : row * stride + at + PANEL_COLUMNS] = 0.0
        if rows == 1:
            _keys_1(products, at, stride, queries, 0, depth, panel, 0, PANEL_COLUMNS, FLOAT_KIND, depth)
        elif rows == 2:
            _keys_2(products, at, stride, queries, 0, depth, panel, 0, PANEL_COLUMNS, FLOAT_KIND, depth)
        else:
            _keys_4(products, at, stride, queries, 0, depth, panel, 0, PANEL_COLUMNS, FLOAT_KIND, depth)


@jit
def _add_values(
    sums: Any, to: Any, width: Any, p: Any, p_at: Any, stride: Any, pair: Any, wide: Any, values: Any,
    at: Any, pitch: Any, kind: Any, count: Any,
) -> None:  # fmt: skip
    if wide and pair:
        _wide_2(sums, to, width, p, p_at, stride, values, at, pitch, kind, count)
    elif wide:
        _wide_1(sums, to, width, p, p_at, stride, values, at, pitch, kind, count)
    elif pair:
        _narrow_2(sums, to, width, p, p_at, stride, values, at, pitch, kind, count)
    else:
        _narrow_1(sums, to, width, p, p_at, stride, values, at, pitch, kind, count)


@jit
def _prefetch_values(values: Any, first: Any, count: Any) -> None:
    """Ask for as much as `count` values from `first` on hold, from memory further on."""
    begin = first * values.shape[1] + AHEAD
    for at in range(begin, begin + count * values.shape[1], CACHE_LINE):
        prefetch_far(values, at)


@jit_apart
def multiply_values(
    sums: Any, width: Any, probabilities: Any, stride: Any, rows: Any, values: Any, first: Any, count: Any,
    kind: Any,
) -> None:  # fmt: skip
    """Store the products of up to `MOST_ROWS` rows of probabilities with `count` values from `first` on.

    Parameters
    ----------
    sums : float32 array (1-D)
        At row pitch `width`.
    probabilities : float32 array (1-D)
        At row pitch `stride`, the first for key `first`.
    rows : int
    values : float32 array (keys, head_dim_v), C order
    kind : int
        Kind of `rounding.py` to which values are rounded.
    """
    pitch = values.shape[1]
    wide = pitch % _WIDE_COLUMNS == 0
    sums[: rows * width] = 0.0
    for key in range(0, count, KEY_BLOCK):
        keys = min(KEY_BLOCK, count - key)
        if not _WHOLE_ROWS:
            _prefetch_values(values, first + key, keys)
        for row in range(0, rows, 2):
            for column in range(0, pitch, _WIDE_COLUMNS if wide else VALUE_COLUMNS):
                at = (first + key) * pitch + column
                _add_values(
                    sums, row * width + column, width, probabilities, row * stride + key, stride,
                    row + 1 < rows, wide, values, at, pitch, kind, keys,
                )  # fmt: skip

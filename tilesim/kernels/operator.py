"""softmax_flash_v2 on operands as the chip stores them: halves as their bits, states with or without lanes.

Rows are widened to float32 a few at a time, run through the tile kernel and narrowed again.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilesim.kernels._jit import jit, jit_entry
from tilesim.kernels.expression import Value, scalar_function, where
from tilesim.kernels.processor import BLOCK
from tilesim.kernels.rounding import HALF_KIND
from tilesim.kernels.rows import CHUNK
from tilesim.kernels.softmax import (
    TILE_ROWS,
    WORK_SIZE,
    Numerics,
    RowState,
    TileShape,
    cut_work,
    softmax_tile,
)

ROWS = TILE_ROWS
"""Rows converted at a time, so that they stay in the processor's cache."""

_HALF_BIAS = 112 << 23
"""By how much a float's exponent field, in its place, exceeds that of the same half."""
_HALF_EXPONENT = 31 << 23
_FLOAT_INFINITY = 0x7F800000
_HALF_INFINITY = 0x7C00
_HALF_NAN = 0x7E00


def _widen_half_formula(x: Value) -> Value:
    """Return the float whose half has the bits of `x`."""
    if BLOCK.half:
        return x.bits().from_half_bits()
    magnitude = (x.bits() & 0x7FFF) << 13
    exponent = magnitude & _HALF_EXPONENT
    normal = (magnitude + _HALF_BIAS).floats()
    subnormal = (magnitude + (_HALF_BIAS + (1 << 23))).floats() - 2.0**-14
    not_finite = (magnitude + 2 * _HALF_BIAS).floats()
    finite = where(exponent.compare("==", 0), subnormal, normal)
    value = where(exponent.compare("==", _HALF_EXPONENT), not_finite, finite)
    return (value.bits() | ((x.bits() & 0x8000) << 16)).floats()


def _narrow_half_formula(x: Value) -> Value:
    """Return a float whose bits are those of the half `x`, which must be one already."""
    if BLOCK.half:
        return x.half_bits().floats()
    magnitude = x.bits() & 0x7FFFFFFF
    normal = (magnitude + -_HALF_BIAS) >> 13
    subnormal = (magnitude.floats() + 0.5).bits() & 0x7FFFFF
    finite = where(magnitude.compare("<", _HALF_BIAS + (1 << 23)), subnormal, normal)
    infinite = where(magnitude.compare("==", _FLOAT_INFINITY), _HALF_INFINITY, finite)
    value = where(magnitude.compare(">", _FLOAT_INFINITY), _HALF_NAN, infinite)
    return (value | ((x.bits() >> 16) & 0x8000)).floats()


_widen_half = scalar_function(_widen_half_formula)
_narrow_half = scalar_function(_narrow_half_formula)


class StoredShape(NamedTuple):
    """Extent of the operands.

    Attributes
    ----------
    rows, columns : int
        Rows and columns of source and destination.
    counted : int
        Columns that enter maximum and sum.
    state_lanes, exp_max_lanes : int
        Copies of a row's value that a state tensor and exp_max hold.
    """

    rows: Any
    columns: Any
    counted: Any
    state_lanes: Any
    exp_max_lanes: Any


@jit
def load_values(stored: Any, first: Any, values: Any, count: Any, kind: Any) -> None:
    """Widen `count` adjacent elements into float32 `values`; halves are given as uint16 bits."""
    # Slices, whose indices cannot be negative, let the compiler use vectors.
    source = stored[first : first + count]
    if kind == HALF_KIND:
        bits = values.view(np.int32)
        for i in range(count):
            bits[i] = source[i]
        for i in range(count):
            values[i] = _widen_half(values[i])
    else:
        for i in range(count):
            values[i] = source[i]


@jit
def store_values(values: Any, stored: Any, first: Any, count: Any, kind: Any) -> None:
    """Narrow `count` float32 values that the kind can hold; halves leave their bits in `values`."""
    target = stored[first : first + count]
    if kind == HALF_KIND:
        bits = values.view(np.int32)
        for i in range(count):
            values[i] = _narrow_half(values[i])
        for i in range(count):
            target[i] = bits[i]
    else:
        for i in range(count):
            target[i] = values[i]


@jit
def load_states(stored: Any, top: Any, lanes: Any, values: Any, rows: Any, kind: Any) -> None:
    """Widen the first lane of each row's state."""
    for row in range(rows):
        load_values(stored, (top + row) * lanes, values[row : row + 1], 1, kind)


@jit
def store_states(values: Any, stored: Any, top: Any, lanes: Any, rows: Any, kind: Any) -> None:
    """Narrow each row's state into all of its lanes; halves leave their bits in `values`."""
    for row in range(rows):
        first = (top + row) * lanes
        store_values(values[row : row + 1], stored, first, 1, kind)
        for lane in range(1, lanes):
            stored[first + lane] = stored[first]


def scratch_size(columns: int) -> int:
    """Return the float32 elements of scratch that the operator needs for rows of that many columns."""
    return ROWS * columns + CHUNK + 2 * ROWS + WORK_SIZE


@jit_entry
def softmax_operator(
    outputs: Any,
    src: Any,
    carried: Any,
    shape: StoredShape,
    update: Any,
    write_reduce_max: Any,
    numerics: Numerics,
    scratch: Any,
    bounds: Any,
) -> None:
    """Run softmax_flash_v2 on flat operands.

    Parameters
    ----------
    outputs : (dst, exp_sum, max, exp_max, reduce_max)
        Flat arrays, float32 or the uint16 bits of halves.
    src : array
    carried : (in_exp_sum, in_max)
    shape : StoredShape
    update : bool
        Whether a state is carried in; without it neither `carried` nor exp_max and reduce_max are touched.
    write_reduce_max : bool
        Whether the maximum of this tile alone is wanted as well.
    numerics : Numerics
    scratch : float32 array
        Of `scratch_size` elements.
    bounds : int64 array
        Of ``2 * ROWS`` elements.
    """
    dst, exp_sum, row_max, exp_max, reduce_max = outputs
    in_exp_sum, in_max = carried
    data, kept = numerics.data_kind, numerics.state_kind
    lanes = shape.state_lanes
    scores, small = scratch[: ROWS * shape.columns + CHUNK], scratch[ROWS * shape.columns + CHUNK :]
    work, exp_max_row, tile_max = cut_work(small[2 * ROWS :])
    state = RowState(small[:ROWS], small[ROWS : 2 * ROWS], exp_max_row, tile_max)
    start, stop = bounds[:ROWS], bounds[ROWS:]
    start[:] = 0
    stop[:] = shape.counted
    for top in range(0, shape.rows, ROWS):
        rows = min(ROWS, shape.rows - top)
        tile = TileShape(shape.columns, rows, shape.columns, shape.counted)
        load_values(src, top * shape.columns, scores, rows * shape.columns, data)
        if update:
            load_states(in_exp_sum, top, lanes, state.sum, rows, kept)
            load_states(in_max, top, lanes, state.max, rows, kept)
        softmax_tile(scores, tile, start, stop, update, numerics, (state.max, state.sum), state, work)
        store_values(scores, dst, top * shape.columns, rows * shape.columns, data)
        store_states(state.sum, exp_sum, top, lanes, rows, kept)
        store_states(state.max, row_max, top, lanes, rows, kept)
        if update:
            store_states(state.exp_max, exp_max, top, shape.exp_max_lanes, rows, data)
            if write_reduce_max:
                store_states(state.tile_max, reduce_max, top, 1, rows, kept)

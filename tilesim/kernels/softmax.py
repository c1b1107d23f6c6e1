"""One tile of softmax_flash_v2: row maximum, exponentials, ordered row sum, state update.

All arithmetic is float32 whatever the kinds; values are rounded where a tensor of the narrower kind
stores them: probabilities and exp_max to the data kind, maximum and sum to the state kind, ties away from
zero. The row sum adds the unrounded exponentials in the order of the vector core: see `_row_sum`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilesim.kernels._jit import jit, jit_apart
from tilesim.kernels.chunks import (
    CHUNK,
    WIDE,
    add_chunk,
    exp_chunk,
    fold_chunk,
    max_chunk,
    store_probabilities,
)
from tilesim.kernels.exp import exp_any, exp_exact, exp_nonpositive
from tilesim.kernels.rounding import round_away

GENERIC_SUM = 0
BASIC_SUM = 1
"""Orders of the row sum. Basic blocks add in the generic order, except those of 1,024 columns."""


class Numerics(NamedTuple):
    """Where and how values are rounded, as integers a kernel can test.

    Attributes
    ----------
    scale : float32
        Factor of the scores, rounded to the data kind.
    data_kind, state_kind : int
        Kinds of `rounding.py`.
    sum_form : int
        `GENERIC_SUM` or `BASIC_SUM`.
    exact_exp : bool
        Whether exp is correctly rounded, through float64, instead of the fast one within 1 ulp.
    guard_empty : bool
        Whether a row whose maximum is -inf gives zeros (as attention defines it) or NaN (as the operator's
        arithmetic does).
    """

    scale: Any
    data_kind: Any
    state_kind: Any
    sum_form: Any
    exact_exp: Any
    guard_empty: Any


class TileShape(NamedTuple):
    """Extent of a tile in its score array, in float32 elements.

    Attributes
    ----------
    stride : int
        Pitch of the rows.
    rows, columns : int
        Rows of the tile and its columns.
    counted : int
        Columns that enter maximum and sum; the others only become probabilities.
    """

    stride: Any
    rows: Any
    columns: Any
    counted: Any


class RowState(NamedTuple):
    """What a tile leaves behind for each row, as float32 arrays.

    Attributes
    ----------
    max, sum : float32 arrays
        Running row maximum and row sum.
    exp_max : float32 array
        Factor that rescales what earlier tiles accumulated.
    tile_max : float32 array
        Row maximum of this tile alone.
    """

    max: Any
    sum: Any
    exp_max: Any
    tile_max: Any


class Work(NamedTuple):
    """Scratch for one row: float32 arrays of 64.

    Attributes
    ----------
    chunk : array
        Exponentials of 64 columns.
    lanes : array
        Running maxima, then partial sums.
    eights : array
        Sums of eight.
    """

    chunk: Any
    lanes: Any
    eights: Any


@jit
def _larger(x: Any, y: Any) -> Any:
    """Return the larger value, +0 of both zeros; NaN if either is."""
    if x == y:
        return np.float32(x + y) if x == 0.0 else x
    return x if x > y or x != x else y


@jit
def _row_max(scores: Any, first: Any, count: Any, lanes: Any) -> Any:
    lanes[:WIDE] = -np.inf
    whole = count // CHUNK * CHUNK
    for at in range(first, first + whole, CHUNK):
        max_chunk(scores, at, lanes)
    for lane in range(count - whole):
        lanes[lane % WIDE] = _larger(scores[first + whole + lane], lanes[lane % WIDE])
    width = WIDE // 2
    while width > 0:
        for lane in range(width):
            lanes[lane] = _larger(lanes[lane], lanes[lane + width])
        width //= 2
    return lanes[0]


@jit_apart
def _careful_chunk(
    scores: Any, first: Any, base: Any, count: Any, start: Any, stop: Any, maximum: Any, numerics: Numerics,
    chunk: Any,
) -> None:  # fmt: skip
    """Turn a chunk with masked or missing columns into probabilities; exponentials stay in `chunk`."""
    for lane in range(CHUNK):
        column = base + lane
        chunk[lane] = 0.0
        if start <= column and column < stop and lane < count:
            x = np.float32(scores[first + column] - maximum)
            chunk[lane] = exp_exact(x) if numerics.exact_exp else exp_nonpositive(x)
        if lane < count:
            scores[first + column] = round_away(chunk[lane], numerics.data_kind)


@jit
def _reduce(values: Any, eights: Any) -> Any:
    """Reduce 64 numbers to one, 8 to 1 twice."""
    fold_chunk(values, 0, eights, 0)
    eights[8:] = 0.0
    fold_chunk(eights, 0, eights, 0)
    return eights[0]


@jit
def _row_sum(
    scores: Any, first: Any, counted: Any, start: Any, stop: Any, maximum: Any, numerics: Numerics, work: Work
) -> Any:
    """Replace the scores by probabilities and return their ordered, unrounded sum.

    From 512 columns on the first 512 are reduced 8 to 1 into 64 lanes; other chunks of 64 are added to the
    lanes one after the other; the lanes are reduced 8 to 1 twice. A basic block of 1,024 columns reduces all
    its columns 8 to 1 twice and adds the two halves. Zeros of masked columns change no sum.
    """
    chunk, lanes, eights = work
    for lane in range(CHUNK):
        lanes[lane] = 0.0
    chunks = (counted + CHUNK - 1) // CHUNK
    halves = numerics.sum_form == BASIC_SUM and chunks == 16
    folded = 8 if counted >= 8 * CHUNK else 0
    for index in range(chunks):
        base = index * CHUNK
        count = min(CHUNK, counted - base)
        masked = base >= stop or base + count <= start
        careful = numerics.exact_exp or count < CHUNK or base < start or base + count > stop
        fold_to = 8 * index if index < folded else -1
        fold_to = 8 * (index % 8) if halves else fold_to
        if masked:
            chunk[:] = 0.0
            scores[first + base : first + base + count] = 0.0
        elif careful:
            _careful_chunk(scores, first, base, count, start, stop, maximum, numerics, chunk)
        else:
            exp_chunk(scores, first + base, maximum, chunk)
            store_probabilities(chunk, scores, first + base, numerics.data_kind)
        if fold_to >= 0:
            fold_chunk(chunk, 0, lanes, fold_to)
        else:
            add_chunk(chunk, lanes)
        if halves and index % 8 == 7:
            fold_chunk(lanes, 0, eights, index // 8 * 8)
    if halves:
        lanes[:] = 0.0
        for lane in range(8):
            lanes[lane] = np.float32(eights[lane] + eights[lane + 8])
        fold_chunk(lanes, 0, eights, 0)
        return eights[0]
    return _reduce(lanes, eights)


@jit_apart
def softmax_tile(
    scores: Any,
    shape: TileShape,
    start: Any,
    stop: Any,
    update: Any,
    numerics: Numerics,
    carried: Any,
    state: RowState,
) -> None:
    """Run softmax_flash_v2 on one tile, in place: scores become probabilities.

    Parameters
    ----------
    scores : float32 array (1-D)
        Rows of the tile; afterwards exp(score - maximum) rounded to the data kind.
    shape : TileShape
    start, stop : int64 arrays
        Columns each row sees; the others are not read and get probability zero.
    update : bool
        Whether a state is carried in; without it neither `carried` nor ``state.exp_max`` is touched.
    numerics : Numerics
    carried : (float32 array, float32 array)
        Row maximum and row sum of the tiles before; may be the arrays of `state`.
    state : RowState
    """
    storage = np.empty(3 * CHUNK, np.float32)
    work = Work(storage[:CHUNK], storage[CHUNK : 2 * CHUNK], storage[2 * CHUNK :])
    in_max, in_sum = carried
    for row in range(shape.rows):
        first = row * shape.stride
        own_max = _row_max(scores, first + start[row], max(stop[row] - start[row], 0), work.lanes)
        state.tile_max[row] = own_max
        maximum = _larger(in_max[row], own_max) if update else own_max
        subtracted = np.float32(0.0) if numerics.guard_empty and maximum == -np.inf else maximum
        total = _row_sum(scores, first, shape.counted, start[row], stop[row], subtracted, numerics, work)
        for column in range(shape.counted, shape.columns):
            x = np.float32(scores[first + column] - subtracted)
            p = exp_exact(x) if numerics.exact_exp else exp_any(x)
            scores[first + column] = round_away(p, numerics.data_kind)
        if update:
            shift = np.float32(in_max[row] - subtracted)
            rescale = exp_exact(shift) if numerics.exact_exp else exp_nonpositive(shift)
            total = np.float32(np.float32(rescale * in_sum[row]) + total)
            state.exp_max[row] = round_away(rescale, numerics.data_kind)
        state.max[row] = round_away(maximum, numerics.state_kind)
        state.sum[row] = round_away(total, numerics.state_kind)

"""One tile of softmax_flash_v2: row maximum, exponentials, ordered row sum, state update.

All arithmetic is float32 whatever the kinds; values are rounded where a tensor of the narrower kind
stores them: probabilities and exp_max to the data kind, maximum and sum to the state kind, ties away from
zero. The row sum adds the unrounded exponentials in the order of the vector core: see `_row_sum`.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tilesim.kernels._jit import jit, jit_apart
from tilesim.kernels.exp import exp_any
from tilesim.kernels.rounding import round_away
from tilesim.kernels.rows import CHUNK, exp_and_sum, fold_lanes, scale_and_max, sum_of_eight

GENERIC_SUM = 0
BASIC_SUM = 1
"""Orders of the row sum. Basic blocks add in the generic order, except those of 1,024 columns."""


class Numerics(NamedTuple):
    """Where and how values are rounded, as integers a kernel can test.

    Attributes
    ----------
    scale : float32
        Factor of the scores, rounded to the score kind.
    score_kind : int
        Kind to which scores are rounded before and after they are scaled; a kind of `rounding.py`.
    data_kind, state_kind : int
        Kinds of probabilities and exp_max, and of row maximum and sum.
    sum_form : int
        `GENERIC_SUM` or `BASIC_SUM`.
    guard_empty : bool
        Whether a row whose maximum is -inf gives zeros (as attention defines it) or NaN (as the operator's
        arithmetic does).
    """

    scale: Any
    score_kind: Any
    data_kind: Any
    state_kind: Any
    sum_form: Any
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


class Sums(NamedTuple):
    """Scratch for one row: float32 arrays of 64 and of 16.

    Attributes
    ----------
    lanes : array
        Partial sums.
    eights : array
        Sums of eight.
    """

    lanes: Any
    eights: Any


@jit
def _larger(x: Any, y: Any) -> Any:
    """Return the larger value, +0 of both zeros; NaN if either is."""
    if x == y:
        return np.float32(x + y) if x == 0.0 else x
    return x if x > y or x != x else y


@jit
def _clip(chunks: Any, low: Any, high: Any) -> Any:
    first = min(max(chunks[0], low), high)
    return first, max(min(chunks[1], high), first)


@jit
def _row_sum(
    scores: Any, first: Any, chunks: Any, visible: Any, counted: Any, maximum: Any, numerics: Numerics,
    sums: Sums,
) -> Any:  # fmt: skip
    """Replace the scores by probabilities and return their ordered, unrounded sum.

    From 512 columns on the first 512 are reduced 8 to 1 into 64 lanes; other chunks of 64 are added to the
    lanes one after the other; the lanes are reduced 8 to 1 twice. A basic block of 1,024 columns reduces all
    its columns 8 to 1 twice and adds the two halves. Zeros of masked columns change no sum.
    """
    lanes, eights = sums
    kind = numerics.data_kind
    lanes[:] = 0.0
    halves = numerics.sum_form == BASIC_SUM and counted > 15 * CHUNK and counted <= 16 * CHUNK
    folded = 8 if counted >= 8 * CHUNK else 0
    folding = _clip(chunks, 0, folded)
    exp_and_sum(scores, first, folding, visible, counted, maximum, kind, lanes, 0)
    if halves:
        fold_lanes(lanes, eights, 0)
        lanes[:] = 0.0
    rest = _clip(chunks, folded, 1 << 40)
    exp_and_sum(scores, first, rest, visible, counted, maximum, kind, lanes, 8 if halves else -1)
    if halves:
        fold_lanes(lanes, eights, 8)
        for lane in range(8):
            eights[lane] = np.float32(eights[lane] + eights[lane + 8])
    else:
        fold_lanes(lanes, eights, 0)
    return sum_of_eight(eights)


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
        Rows of the tile, at least 64 elements of storage behind the last; afterwards exp(score - maximum)
        rounded to the data kind.
    shape : TileShape
    start, stop : int64 arrays
        Columns each row sees; the others get probability zero, whatever they hold.
    update : bool
        Whether a state is carried in; without it neither `carried` nor ``state.exp_max`` is touched.
    numerics : Numerics
    carried : (float32 array, float32 array)
        Row maximum and row sum of the tiles before; may be the arrays of `state`.
    state : RowState
    """
    sums = Sums(np.empty(CHUNK, np.float32), np.empty(16, np.float32))
    in_max, in_sum = carried
    for row in range(shape.rows):
        first = row * shape.stride
        low, high = start[row], max(start[row], stop[row])
        chunks = (low // CHUNK, (high + CHUNK - 1) // CHUNK if high > low else low // CHUNK)
        own_max = scale_and_max(scores, first, chunks, low, high, numerics.scale, numerics.score_kind)
        state.tile_max[row] = own_max
        maximum = _larger(in_max[row], own_max) if update else own_max
        subtracted = np.float32(0.0) if numerics.guard_empty and maximum == -np.inf else maximum
        scores[first : first + chunks[0] * CHUNK] = 0.0
        scores[first + chunks[1] * CHUNK : first + shape.counted] = 0.0
        total = _row_sum(scores, first, chunks, (low, high), shape.counted, subtracted, numerics, sums)
        for column in range(shape.counted, shape.columns):
            p = exp_any(np.float32(scores[first + column] - subtracted))
            scores[first + column] = round_away(p, numerics.data_kind)
        if update:
            rescale = exp_any(np.float32(in_max[row] - subtracted))
            total = np.float32(np.float32(rescale * in_sum[row]) + total)
            state.exp_max[row] = round_away(rescale, numerics.data_kind)
        state.max[row] = round_away(maximum, numerics.state_kind)
        state.sum[row] = round_away(total, numerics.state_kind)

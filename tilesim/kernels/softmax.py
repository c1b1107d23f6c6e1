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
from tilesim.kernels.rows import (
    CHUNK,
    NARROW_COLUMNS,
    exponentials,
    fold_lanes,
    narrow_probabilities,
    scale_and_max,
    sum_and_round,
    sum_of_eight,
)

GENERIC_SUM = 0
BASIC_SUM = 1
PLAIN_SUM = 2
"""Orders of the row sum. Basic blocks add in the generic order, except those of 1,024 columns; the plain
softmax of `plain_softmax.py` adds in an order of its own."""


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
        `GENERIC_SUM`, `BASIC_SUM` or, in the attention kernel only, `PLAIN_SUM`.
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


TILE_ROWS = 8
"""Rows of one tile at most."""


class Work(NamedTuple):
    """Scratch of one tile: float32 arrays, from `cut_work`.

    Attributes
    ----------
    lanes, eights : arrays of 64 and 16
        Partial sums of one row, and sums of eight of them.
    top, total : arrays of `TILE_ROWS`
        What each row subtracts from its scores, and its sum of exponentials.
    """

    lanes: Any
    eights: Any
    top: Any
    total: Any


WORK_SIZE = CHUNK + 16 + 4 * TILE_ROWS
"""float32 elements of scratch for `cut_work` and for the exp_max and tile_max of a `RowState`."""


@jit
def cut_work(storage: Any) -> Any:
    """Return scratch for any number of tiles, exp_max and tile_max, cut from an array of `WORK_SIZE`."""
    lanes, eights, rows = storage[:CHUNK], storage[CHUNK : CHUNK + 16], storage[CHUNK + 16 :]
    top, total = rows[:TILE_ROWS], rows[TILE_ROWS : 2 * TILE_ROWS]
    exp_max, tile_max = rows[2 * TILE_ROWS : 3 * TILE_ROWS], rows[3 * TILE_ROWS : 4 * TILE_ROWS]
    return Work(lanes, eights, top, total), exp_max, tile_max


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
    work: Work,
) -> Any:  # fmt: skip
    """Replace the scores by probabilities and return their ordered, unrounded sum.

    From 512 columns on the first 512 are reduced 8 to 1 into 64 lanes; other chunks of 64 are added to the
    lanes one after the other; the lanes are reduced 8 to 1 twice. A basic block of 1,024 columns reduces all
    its columns 8 to 1 twice and adds the two halves. Zeros of masked columns change no sum.
    """
    lanes, eights = work.lanes, work.eights
    kind = numerics.data_kind
    if counted <= NARROW_COLUMNS:
        return narrow_probabilities(scores, first, chunks, visible, counted, maximum, kind)
    for lane in range(CHUNK):
        lanes[lane] = 0.0
    halves = numerics.sum_form == BASIC_SUM and counted > 15 * CHUNK and counted <= 16 * CHUNK
    folded = 8 if counted >= 8 * CHUNK else 0
    folding = _clip(chunks, 0, folded)
    exponentials(scores, first, chunks, visible, counted, maximum)
    sum_and_round(scores, first, folding, visible, counted, kind, lanes, 0)
    if halves:
        fold_lanes(lanes, eights, 0)
        lanes[:] = 0.0
    rest = _clip(chunks, folded, 1 << 40)
    sum_and_round(scores, first, rest, visible, counted, kind, lanes, 8 if halves else -1)
    if halves:
        fold_lanes(lanes, eights, 8)
        for lane in range(8):
            eights[lane] = np.float32(eights[lane] + eights[lane + 8])
    else:
        fold_lanes(lanes, eights, 0)
    return sum_of_eight(eights)


@jit
def chunk_range(start: Any, stop: Any) -> Any:
    """Return the range of chunks that hold a visible column."""
    first = start // CHUNK
    return first, max(first, (stop + CHUNK - 1) // CHUNK) if stop > start else first


@jit
def mask_chunks(scores: Any, first: Any, chunks: Any, counted: Any) -> None:
    """Put probability 0 into the chunks of a row that hold no visible column."""
    row = scores[first : first + counted]
    row[: chunks[0] * CHUNK] = 0.0
    row[chunks[1] * CHUNK :] = 0.0


@jit_apart
def _exp_padding(scores: Any, shape: TileShape, top: Any, kind: Any) -> None:
    """Turn the columns that are not counted into probabilities too, as the operator does."""
    for row in range(shape.rows):
        for at in range(row * shape.stride + shape.counted, row * shape.stride + shape.columns):
            scores[at] = round_away(exp_any(np.float32(scores[at] - top[row])), kind)


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
    work: Work,
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
    work : Work
    """
    # All rows in each step: the long chains of one row's maximum, sum and rescale factor overlap with the
    # other rows' work.
    in_max, in_sum = carried
    for row in range(shape.rows):
        low, high = start[row], max(start[row], stop[row])
        own_max = scale_and_max(
            scores, row * shape.stride, chunk_range(low, high), low, high, numerics.scale, numerics.score_kind
        )
        state.tile_max[row] = own_max
        maximum = _larger(in_max[row], own_max) if update else own_max
        work.total[row] = maximum
        work.top[row] = np.float32(0.0) if numerics.guard_empty and maximum == -np.inf else maximum
    for row in range(shape.rows):
        mask_chunks(scores, row * shape.stride, chunk_range(start[row], stop[row]), shape.counted)
    if update:
        for row in range(shape.rows):
            state.exp_max[row] = exp_any(np.float32(in_max[row] - work.top[row]))
    for row in range(shape.rows):
        state.max[row] = round_away(work.total[row], numerics.state_kind)
        low, high = start[row], max(start[row], stop[row])
        work.total[row] = _row_sum(
            scores, row * shape.stride, chunk_range(low, high), (low, high), shape.counted, work.top[row],
            numerics, work,
        )  # fmt: skip
    for row in range(shape.rows):
        total = work.total[row]
        if update:
            rescale = state.exp_max[row]
            total = np.float32(np.float32(rescale * in_sum[row]) + total)
            state.exp_max[row] = round_away(rescale, numerics.data_kind)
        state.sum[row] = round_away(total, numerics.state_kind)
    if shape.columns > shape.counted:
        _exp_padding(scores, shape, work.top, numerics.data_kind)

"""The tile softmax of plain FlashAttention-2 in float: no rounding points, no prescribed order of sums.

What the policy `float` runs instead of `softmax.softmax_tile`. Scores come scaled. The exponential is a float
polynomial within 1 ulp; results below the smallest normal number become 0.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from llvmlite import ir
from numba import types
from numba.core import cgutils

from tilesim.kernels._jit import intrinsic, jit, jit_apart
from tilesim.kernels.exp import FLOAT_SHIFT, LEAST_NORMAL, LOG2_E, exp_any
from tilesim.kernels.expression import Value, where
from tilesim.kernels.rows import Slots, each_chunk, filled, for_each_width, larger, reduce_lanes, spread
from tilesim.kernels.softmax import RowState, TileShape, Work, chunk_range, mask_chunks
from tilesim.kernels.vector import element_pointer

LN2_HIGH = 0.693359375
"""ln 2 to 9 bits, so that its product with any |n| < 2^15 is exact."""
LN2_LOW = -2.1219444e-4
C2, C3, C4, C5, C6 = 0.49999994, 0.16666521, 0.04166839, 0.008368716, 0.0013814602
"""Minimax coefficients of (e^r - 1 - r) / r^2 on |r| <= ln 2 / 2, relative error of e^r below 2^-28."""


def _exp(x: Value) -> Value:
    """Return e^x for x <= 0, -inf or NaN."""
    shifted = x.times_plus(LOG2_E, FLOAT_SHIFT)
    n = shifted - FLOAT_SHIFT
    r = n.times_plus(-LN2_LOW, n.times_plus(-LN2_HIGH, x))
    square = r * r
    low, high = r.times_plus(C3, C2), r.times_plus(C5, C4)
    q = square.times_plus(square.times_plus(C6, high), low)
    p = square.times_plus(q, r) + 1.0
    power = (p.bits() + (shifted.bits() << 23)).floats()
    return where(x.compare("<", LEAST_NORMAL), 0.0, power)


@intrinsic
def _row_max(typing_context: Any, scores: Any, first: Any, chunks: Any, start: Any, stop: Any) -> Any:
    """Return the largest score that a row sees, those of NaN aside."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, at, bounds, begin, end = args
        row = element_pointer(context, builder, signature.args[0], array, at)
        largest = cgutils.alloca_once(builder, ir.FloatType())

        def emit(parts: int) -> None:
            running = Slots(builder, parts)
            running.set(filled(builder, -math.inf, parts))
            with each_chunk(builder, row, bounds, (begin, end), parts) as chunk:
                seen = chunk.seen(chunk.load(), -math.inf)
                running.set([larger(*pair) for pair in zip(seen, running.get(), strict=True)])
            builder.store(reduce_lanes(running.get(), larger).ir, largest)

        for_each_width(builder, end, emit)
        return builder.load(largest, typ=ir.FloatType())

    number = types.intp
    return types.float32(scores, number, types.UniTuple(number, 2), number, number), codegen


@intrinsic
def _exp_and_sum(
    typing_context: Any, scores: Any, first: Any, chunks: Any, visible: Any, counted: Any, maximum: Any
) -> Any:
    """Turn scores into exp(score - maximum), 0 where the row sees nothing, and return their sum.

    `counted` is the columns of the row, seen or not: no fewer are written.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, at, bounds, seen, end, top = args
        row = element_pointer(context, builder, signature.args[0], array, at)
        largest, result = spread(builder, top), cgutils.alloca_once(builder, ir.FloatType())
        columns = cgutils.unpack_tuple(builder, seen, 2)

        def emit(parts: int) -> None:
            sums = Slots(builder, parts)
            sums.set(filled(builder, 0.0, parts))
            with each_chunk(builder, row, bounds, columns, parts) as chunk:
                values = chunk.seen([_exp(score - largest) for score in chunk.load()], 0.0)
                chunk.store(values)
                sums.set([total + value for total, value in zip(sums.get(), values, strict=True)])
            builder.store(reduce_lanes(sums.get(), Value.__add__).ir, result)

        for_each_width(builder, end, emit)
        return builder.load(result, typ=ir.FloatType())

    number = types.intp
    pair = types.UniTuple(number, 2)
    return types.float32(scores, number, pair, pair, number, types.float32), codegen


@jit
def _update(row: Any, own_max: Any, update: Any, state: RowState, work: Work) -> None:
    """Note the new maximum of a row, what it subtracts, and the factor of what came before."""
    maximum = own_max
    if update and state.max[row] > own_max:
        maximum = state.max[row]
    top = np.float32(0.0) if maximum == -np.inf else maximum
    if update:
        state.exp_max[row] = exp_any(np.float32(state.max[row] - top))
    state.max[row] = maximum
    work.top[row] = top


@jit_apart
def plain_softmax_tile(
    scores: Any, shape: TileShape, start: Any, stop: Any, update: Any, state: RowState, work: Work
) -> None:
    """Run the online softmax on one tile, in place: scores become probabilities.

    Parameters
    ----------
    scores, shape, start, stop, update, state, work
        As for `softmax.softmax_tile`; the state that is carried in is that of `state`. A NaN among the scores
        makes sum and probabilities NaN, not the maximum.
    """
    for row in range(shape.rows):
        low, high = start[row], max(start[row], stop[row])
        own_max = _row_max(scores, row * shape.stride, chunk_range(low, high), low, high)
        state.tile_max[row] = own_max
        _update(row, own_max, update, state, work)
    for row in range(shape.rows):
        mask_chunks(scores, row * shape.stride, chunk_range(start[row], stop[row]), shape.counted)
    for row in range(shape.rows):
        low, high = start[row], max(start[row], stop[row])
        work.total[row] = _exp_and_sum(
            scores, row * shape.stride, chunk_range(low, high), (low, high), shape.counted, work.top[row]
        )
    for row in range(shape.rows):
        before = np.float32(state.exp_max[row] * state.sum[row]) if update else np.float32(0.0)
        state.sum[row] = np.float32(before + work.total[row])

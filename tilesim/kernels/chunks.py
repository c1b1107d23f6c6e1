"""Operations on chunks of 64 adjacent float32 numbers, several vector registers at a time.

A chain of dependent instructions leaves a vector unit idle; a formula emitted for WIDE numbers works on
independent registers side by side and fills it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from tilesim.kernels._jit import intrinsic, jit
from tilesim.kernels.exp import exp_nonpositive_formula
from tilesim.kernels.expression import Value, where
from tilesim.kernels.rounding import (
    BFLOAT16_KIND,
    HALF_KIND,
    bfloat16_away_formula,
    bfloat16_even_formula,
    half_away_probability_formula,
    half_even_formula,
)
from tilesim.kernels.vector import BLOCK, element_pointer

CHUNK = 64
"""float lanes of one 256-byte repeat of the vector core: the unit in which rows are reduced."""

WIDE = min(CHUNK, 4 * BLOCK.lanes)
_INDEX = ir.IntType(64)


def _vector(count: int) -> Any:
    return ir.VectorType(ir.FloatType(), count)


def _place(builder: Any, pointer: Any, first: int, count: int) -> Any:
    place = builder.gep(pointer, [_INDEX(first)])
    return builder.bitcast(place, _vector(count).as_pointer())


def _load(builder: Any, pointer: Any, first: int, count: int) -> Value:
    return Value(builder, builder.load(_place(builder, pointer, first, count), align=4, typ=_vector(count)))


def _store(value: Value, pointer: Any, first: int) -> None:
    builder = value.builder
    builder.store(value.ir, _place(builder, pointer, first, value.ir.type.count), align=4)


def _spread(builder: Any, scalar: Any) -> Value:
    one = builder.bitcast(scalar, _vector(1))
    return Value(builder, one).lanes([0] * WIDE)


def _chunk_map(formula: Callable[[Value, Value], Value]) -> Any:
    """Return an intrinsic that puts ``formula(x, parameter)`` of 64 numbers into an array."""

    def typed(
        typing_context: Any, source: Any, source_at: Any, target: Any, target_at: Any, parameter: Any
    ) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            read = element_pointer(context, builder, signature.args[0], args[0], args[1])
            write = element_pointer(context, builder, signature.args[2], args[2], args[3])
            spread = _spread(builder, args[4])
            for first in range(0, CHUNK, WIDE):
                _store(formula(_load(builder, read, first, WIDE), spread), write, first)
            return context.get_dummy_value()

        number = types.intp
        return types.void(source, number, target, number, types.float32), codegen

    typed.__doc__ = formula.__doc__
    return intrinsic(typed)


def _exp_less(x: Value, maximum: Value) -> Value:
    """Return exp(x - maximum) for x <= maximum."""
    return exp_nonpositive_formula(x - maximum)


def _scale_half(x: Value, scale: Value) -> Value:
    """Round to half, multiply, round again."""
    return half_even_formula(half_even_formula(x) * scale)


def _scale_bfloat16(x: Value, scale: Value) -> Value:
    """Round to bfloat16, multiply, round again."""
    return bfloat16_even_formula(bfloat16_even_formula(x) * scale)


_exp_chunk = _chunk_map(_exp_less)
_half_chunk = _chunk_map(lambda p, _: half_away_probability_formula(p))
_bfloat16_chunk = _chunk_map(lambda p, _: bfloat16_away_formula(p))
_copy_chunk = _chunk_map(lambda p, _: p)
_scale_half_chunk = _chunk_map(_scale_half)
_scale_bfloat16_chunk = _chunk_map(_scale_bfloat16)
_scale_float_chunk = _chunk_map(lambda x, scale: x * scale)


@jit
def exp_chunk(scores: Any, at: Any, maximum: Any, chunk: Any) -> None:
    """Put exp(x - maximum) of 64 scores, none above `maximum`, into `chunk`."""
    _exp_chunk(scores, at, chunk, 0, maximum)


@jit
def store_probabilities(chunk: Any, scores: Any, at: Any, kind: Any) -> None:
    """Store 64 numbers from 0 to 1 rounded to the given kind, ties away from zero."""
    if kind == HALF_KIND:
        _half_chunk(chunk, 0, scores, at, 0.0)
    elif kind == BFLOAT16_KIND:
        _bfloat16_chunk(chunk, 0, scores, at, 0.0)
    else:
        _copy_chunk(chunk, 0, scores, at, 0.0)


@jit
def scale_chunk(scores: Any, at: Any, scale: Any, kind: Any) -> None:
    """Round 64 scores to the given kind, multiply them by `scale`, round again, in place."""
    if kind == HALF_KIND:
        _scale_half_chunk(scores, at, scores, at, scale)
    elif kind == BFLOAT16_KIND:
        _scale_bfloat16_chunk(scores, at, scores, at, scale)
    else:
        _scale_float_chunk(scores, at, scores, at, scale)


def _larger(x: Value, y: Value) -> Value:
    """Return the larger value; NaN if either is."""
    larger = where(x.compare(">", y), x, y)
    return where(x.compare("!=", x), x, larger)


@intrinsic
def max_chunk(typing_context: Any, scores: Any, at: Any, lanes: Any) -> Any:
    """Raise WIDE running maxima in `lanes` by 64 scores; NaN, once met, stays."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        read = element_pointer(context, builder, signature.args[0], args[0], args[1])
        running = element_pointer(context, builder, signature.args[2], args[2], _INDEX(0))
        maxima = _load(builder, running, 0, WIDE)
        for first in range(0, CHUNK, WIDE):
            maxima = _larger(_load(builder, read, first, WIDE), maxima)
        _store(maxima, running, 0)
        return context.get_dummy_value()

    return types.void(scores, types.intp, lanes), codegen


def _fold(values: Value) -> Value:
    """Add each 8 adjacent numbers as the reduction unit does.

    Pairs, pairs of pairs, then both halves: ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7)).
    """
    for _ in range(3):
        count = values.ir.type.count
        values = values.lanes(list(range(0, count, 2))) + values.lanes(list(range(1, count, 2)))
    return values


def _concatenate(parts: list[Value]) -> Value:
    """Return one vector of all parts, whose number is a power of two."""
    while len(parts) > 1:
        parts = [left.followed_by(right) for left, right in zip(parts[::2], parts[1::2], strict=True)]
    return parts[0]


@intrinsic
def fold_chunk(typing_context: Any, chunk: Any, at: Any, target: Any, target_at: Any) -> Any:
    """Add each 8 adjacent of 64 numbers as the reduction unit does, into 8 numbers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        read = element_pointer(context, builder, signature.args[0], args[0], args[1])
        write = element_pointer(context, builder, signature.args[2], args[2], args[3])
        folded = [_fold(_load(builder, read, first, WIDE)) for first in range(0, CHUNK, WIDE)]
        _store(_concatenate(folded), write, 0)
        return context.get_dummy_value()

    return types.void(chunk, types.intp, target, types.intp), codegen


@intrinsic
def add_chunk(typing_context: Any, chunk: Any, lanes: Any) -> Any:
    """Add 64 numbers to 64 running sums."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        read = element_pointer(context, builder, signature.args[0], args[0], _INDEX(0))
        sums = element_pointer(context, builder, signature.args[1], args[1], _INDEX(0))
        for first in range(0, CHUNK, WIDE):
            _store(_load(builder, sums, first, WIDE) + _load(builder, read, first, WIDE), sums, first)
        return context.get_dummy_value()

    return types.void(chunk, lanes), codegen

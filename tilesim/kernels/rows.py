"""Passes over one row of scores in chunks of 64 columns, emitted for vector registers.

A row lies in a flat float32 array from element `first` on. It sees the columns ``start ... stop - 1``;
passes run over the chunks that hold one of them, and columns that the row does not see are masked there.
"""

from __future__ import annotations

import contextlib
import functools
import math
from collections.abc import Callable, Iterator
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tilesim.kernels._jit import intrinsic
from tilesim.kernels.exp import LEAST_NORMAL, exp_nonpositive_formula
from tilesim.kernels.expression import Value, concatenate, where
from tilesim.kernels.processor import BLOCK
from tilesim.kernels.quick_exp import quick_exp_formula
from tilesim.kernels.rounding import (
    EVEN_FORMULAS,
    PROBABILITY_FORMULAS,
    for_each_kind,
)
from tilesim.kernels.vector import element_pointer

CHUNK = 64
"""float lanes of one 256-byte repeat of the vector core: the unit in which rows are reduced."""

LANES = BLOCK.lanes
PARTS = CHUNK // LANES
NARROW_COLUMNS = 32
NARROW_PARTS = (NARROW_COLUMNS // 2 // LANES, NARROW_COLUMNS // LANES)
"""Registers of rows of so few columns that a whole chunk would be mostly for nothing."""
EXP_PARTS = PARTS if BLOCK.lookup else 2
"""Vector registers whose exponentials are computed together: enough to overlap their steps, few enough that
what the steps need stays in registers."""
_FLOAT = ir.FloatType()
_INT = ir.IntType(32)
INDEX = ir.IntType(64)
VECTOR = ir.VectorType(_FLOAT, LANES)
_INTEGERS = ir.VectorType(_INT, LANES)


def _place(builder: Any, pointer: Any, first: int, count: int) -> Any:
    place = builder.gep(pointer, [INDEX(first)])
    return builder.bitcast(place, ir.VectorType(_FLOAT, count).as_pointer())


def load(builder: Any, pointer: Any, first: int = 0, count: int = LANES) -> Value:
    """Return `count` numbers from element `first` on."""
    vector = ir.VectorType(_FLOAT, count)
    return Value(builder, builder.load(_place(builder, pointer, first, count), align=4, typ=vector))


def store(value: Value, pointer: Any, first: int) -> None:
    """Put a vector at element `first`."""
    builder = value.builder
    builder.store(value.ir, _place(builder, pointer, first, value.ir.type.count), align=4)


def load_chunk(builder: Any, pointer: Any, parts: int = PARTS) -> list[Value]:
    """Return the 64 numbers at an address in vector registers, or the first registers of them."""
    return [load(builder, pointer, part * LANES) for part in range(parts)]


def store_chunk(values: list[Value], pointer: Any) -> None:
    """Put a chunk at an address."""
    for part, value in enumerate(values):
        store(value, pointer, part * LANES)


def spread(builder: Any, scalar: Any, kind: Any = VECTOR) -> Value:
    """Return a vector with a number in every lane."""
    one = builder.bitcast(scalar, ir.VectorType(kind.element, 1))
    return Value(builder, one).lanes([0] * kind.count)


class Slots:
    """Stack slots for the vectors of a chunk, which the compiler turns into registers."""

    def __init__(self, builder: Any, parts: int = PARTS) -> None:
        self.builder = builder
        self.slots = [cgutils.alloca_once(builder, VECTOR) for _ in range(parts)]

    def set(self, values: list[Value]) -> None:
        """Put a chunk into the slots."""
        for slot, value in zip(self.slots, values, strict=True):
            self.builder.store(value.ir, slot)

    def get(self) -> list[Value]:
        """Return the chunk in the slots."""
        return [Value(self.builder, self.builder.load(slot, typ=VECTOR)) for slot in self.slots]


def _below(builder: Any, bound: Any, base: Any, parts: int) -> list[Value]:
    """Return, for the columns of the chunk at `base`, whether each is below a bound."""
    left = spread(builder, builder.trunc(builder.sub(bound, base), _INT), _INTEGERS)
    columns = [
        Value(builder, ir.Constant(_INTEGERS, [part * LANES + lane for lane in range(LANES)]))
        for part in range(parts)
    ]
    return [column.compare("<", left) for column in columns]


def filled(builder: Any, number: float, parts: int = PARTS) -> list[Value]:
    """Return a chunk with one number in every column."""
    return [Value(builder, ir.Constant(VECTOR, [number] * LANES))] * parts


class Chunk:
    """A chunk of a row under construction, or some registers of one.

    Attributes
    ----------
    base : LLVM value
        Its first column.
    place : LLVM value
        Address of that column.
    parts : int
        Vector registers of it that are worked on.
    """

    def __init__(self, builder: Any, base: Any, row: Any, visible: tuple[Any, Any], parts: int) -> None:
        self.builder, self.base, self._visible, self.parts = builder, base, visible, parts
        self._end = builder.add(base, INDEX(parts * LANES))
        self.place = builder.gep(row, [base])

    def load(self) -> list[Value]:
        """Return what lies there."""
        return load_chunk(self.builder, self.place, self.parts)

    def store(self, values: list[Value]) -> None:
        """Put values there."""
        store_chunk(values, self.place)

    def seen(self, values: list[Value], otherwise: float) -> list[Value]:
        """Return `values`, with `otherwise` in the columns that the row does not see."""
        builder, (start, stop) = self.builder, self._visible
        chosen = Slots(builder, self.parts)
        chosen.set(values)
        begins = builder.icmp_signed(">=", self.base, start)
        whole = builder.and_(begins, builder.icmp_signed("<=", self._end, stop))
        with builder.if_then(builder.not_(whole), likely=False):
            before, within = (_below(builder, bound, self.base, self.parts) for bound in (start, stop))
            columns = zip(values, before, within, filled(builder, otherwise, self.parts), strict=True)
            chosen.set(
                [where(hidden, nothing, where(seen, x, nothing)) for x, hidden, seen, nothing in columns]
            )
        return chosen.get()

    def restore_behind(self, counted: Any, before: list[Value]) -> None:
        """Undo what was stored behind column ``counted - 1``, where `before` stood."""
        with self.builder.if_then(self.builder.icmp_signed(">", self._end, counted), likely=False):
            inside = _below(self.builder, counted, self.base, self.parts)
            self.store([where(*choice) for choice in zip(inside, self.load(), before, strict=True)])


@contextlib.contextmanager
def each_chunk(
    builder: Any, row: Any, chunks: Any, visible: tuple[Any, Any], parts: int = PARTS, step: int = CHUNK
) -> Iterator[Chunk]:
    """Emit a loop over a range of chunks of a row; it and the columns seen are pairs, the second excluded.

    `step` is how many columns lie between what is worked on.
    """
    low, high = (builder.mul(bound, INDEX(CHUNK)) for bound in cgutils.unpack_tuple(builder, chunks, 2))
    with cgutils.for_range_slice(builder, low, high, INDEX(step)) as (base, _):
        yield Chunk(builder, base, row, visible, parts)


def for_each_width(
    builder: Any, columns: Any, emit: Callable[[int], None], widths: tuple[int, ...] = (*NARROW_PARTS, PARTS)
) -> None:
    """Emit code for rows of so few columns that some registers hold them, and code for whole chunks."""
    parts, *wider = widths
    if not wider:
        emit(parts)
        return
    with builder.if_else(builder.icmp_signed("<=", columns, INDEX(parts * LANES))) as (narrow, wide):
        with narrow:
            emit(parts)
        with wide:
            for_each_width(builder, columns, emit, tuple(wider))


def larger(x: Value, y: Value) -> Value:
    """Return the larger value; a NaN in x is passed over."""
    return where(x.compare(">", y), x, y)


def reduce_lanes(values: list[Value], combine: Callable[[Value, Value], Value]) -> Value:
    """Return one number from all lanes of a chunk, halves combined with halves."""
    while len(values) > 1:
        values = [combine(*pair) for pair in zip(values[::2], values[1::2], strict=True)]
    value = values[0]
    while value.ir.type.count > 1:
        value = combine(*value.cut(value.ir.type.count // 2))
    return Value(value.builder, value.builder.extract_element(value.ir, _INT(0)))


class _Maximum:
    """Largest number of many chunks, zero of either sign where both occur; NaN if there is one."""

    def __init__(self, builder: Any, parts: int) -> None:
        self.builder = builder
        self.parts, self.nan = Slots(builder, parts), cgutils.alloca_once(builder, VECTOR)
        self.parts.set(filled(builder, -math.inf, parts))
        builder.store(ir.Constant(VECTOR, [0.0] * LANES), self.nan)

    def take(self, values: list[Value]) -> None:
        """Take the numbers of one chunk."""
        self.parts.set([larger(*pair) for pair in zip(values, self.parts.get(), strict=True)])
        # Apart, and two at a time, it takes fewer steps than in `larger`.
        found = Value(self.builder, self.builder.load(self.nan, typ=VECTOR))
        for x, y in zip(values[::2], values[1::2] or values, strict=True):
            found = where(x.unordered(y), math.nan, found)
        self.builder.store(found.ir, self.nan)

    def result(self) -> Any:
        """Return the largest number of all chunks."""
        largest = reduce_lanes(self.parts.get(), larger)
        nan = Value(self.builder, self.builder.load(self.nan, typ=VECTOR))
        return self.builder.select(nan.unordered(nan).any(), _FLOAT(math.nan), largest.ir)


@intrinsic
def scale_and_max(
    typing_context: Any, scores: Any, first: Any, chunks: Any, start: Any, stop: Any, scale: Any, kind: Any
) -> Any:
    """Round scores to a kind, multiply them by `scale`, round again, in place; return the largest seen.

    Parameters
    ----------
    scores : float32 array (1-D)
    first : int
        Element at which the row begins.
    chunks : (int, int)
        Chunks to run over, the second excluded.
    start, stop : int
        Columns that the row sees.
    scale : float32
    kind : int
        Kind of `rounding.py`.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, at, bounds, begin, end, factor, to_kind = args
        row = element_pointer(context, builder, signature.args[0], array, at)
        factors = spread(builder, factor)
        largest = cgutils.alloca_once(builder, _FLOAT)

        def emit(rounded: Callable[[Value], Value], parts: int) -> None:
            running = _Maximum(builder, parts)
            with each_chunk(builder, row, bounds, (begin, end), parts) as chunk:
                scaled = [rounded(rounded(score) * factors) for score in chunk.load()]
                chunk.store(scaled)
                running.take(chunk.seen(scaled, -math.inf))
            builder.store(running.result(), largest)

        def emit_width(parts: int) -> None:
            for_each_kind(builder, to_kind, EVEN_FORMULAS, functools.partial(emit, parts=parts))

        for_each_width(builder, end, emit_width)
        return builder.load(largest, typ=_FLOAT)

    number = types.intp
    pair = types.UniTuple(number, 2)
    return types.float32(scores, number, pair, number, number, types.float32, number), codegen


def _pair_sums(values: list[Value]) -> list[Value]:
    """Add adjacent numbers of each two vectors within quarters, 4 lanes, where shuffles cost least.

    A quarter of the result holds the two sums of that quarter of the first vector, then those of the second.
    """
    firsts = [
        base + 4 * quarter + lane for quarter in range(LANES // 4) for base in (0, LANES) for lane in (0, 2)
    ]
    sums = []
    for pair in zip(values[::2], values[1::2], strict=True):
        both = pair[0].followed_by(pair[1])
        sums.append(both.lanes(firsts) + both.lanes([lane + 1 for lane in firsts]))
    return sums


def _place_of_four(number: int) -> int:
    """Return where two rounds of `_pair_sums` put the sum of columns ``4 * number ... 4 * number + 3``."""
    vector, quarter = divmod(number, LANES // 4)
    return vector // 4 * LANES + 4 * quarter + vector % 4


def _fold_chunk(values: list[Value]) -> Value:
    """Add each 8 adjacent numbers of a chunk as the reduction unit does.

    Pairs, pairs of pairs, then both halves: ((a0 + a1) + (a2 + a3)) + ((a4 + a5) + (a6 + a7)).
    """
    fours = concatenate(_pair_sums(_pair_sums(values)))
    places = [_place_of_four(number) for number in range(CHUNK // 4)]
    return fours.lanes(places[::2]) + fours.lanes(places[1::2])


def _store_probabilities(chunk: Chunk, values: list[Value], kind: Any) -> None:
    """Store numbers from 0 to 1 rounded to a kind known at run time, ties away from zero."""

    def emit(rounded: Callable[[Value], Value]) -> None:
        chunk.store([rounded(p) for p in values])

    for_each_kind(chunk.builder, kind, PROBABILITY_FORMULAS, emit)


def side_by_side(formula: Callable[[Value], Value], values: list[Value]) -> list[Value]:
    """Apply a formula to all registers of a chunk, step by step, so that their steps overlap."""
    return formula(concatenate(values)).cut(LANES)


def _exp(builder: Any, values: list[Value]) -> list[Value]:
    """Return e^x for the numbers of a chunk, none of which is positive where it counts."""
    if not BLOCK.lookup or len(values) == 1:
        return side_by_side(exp_nonpositive_formula, values)
    results, most, least = (wide.cut(LANES) for wide in quick_exp_formula(concatenate(values)))
    chosen = Slots(builder, len(values))
    chosen.set(results)
    smallest = functools.reduce(lambda x, y: where(x.compare("<", y), x, y), values)
    doubts = [upper.compare("!=", lower) for upper, lower in zip(most, least, strict=True)]
    doubtful = functools.reduce(Value.__or__, doubts) | smallest.compare("<", LEAST_NORMAL)
    with builder.if_then(doubtful.any(), likely=False):
        chosen.set(side_by_side(exp_nonpositive_formula, values))
    return chosen.get()


def _add_to_lanes(builder: Any, values: list[Value], lanes: Any) -> None:
    """Add a chunk to 64 running sums."""
    sums = load_chunk(builder, lanes)
    store_chunk([total + value for total, value in zip(sums, values, strict=True)], lanes)


def _add_or_fold(builder: Any, values: list[Value], lanes: Any, fold_to: Any) -> None:
    """Add a chunk to 64 running sums, or put its 8 folded sums at `fold_to` if that is not negative."""
    with builder.if_else(builder.icmp_signed(">=", fold_to, INDEX(0))) as (fold, add):
        with fold:
            store(_fold_chunk(values), builder.gep(lanes, [fold_to]), 0)
        with add:
            _add_to_lanes(builder, values, lanes)


@intrinsic
def exponentials(
    typing_context: Any, scores: Any, first: Any, chunks: Any, visible: Any, counted: Any, maximum: Any
) -> Any:
    """Turn scores into exp(score - maximum), in place.

    Parameters
    ----------
    scores, first, chunks
        As for `scale_and_max`; no score that is seen exceeds `maximum`.
    visible : (int, int)
        Columns that the row sees, the second excluded; the others become 0.
    counted : int
        Columns of the row; what lies behind is left as it is.
    maximum : float32
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, at, bounds, seen, end, top = args
        row = element_pointer(context, builder, signature.args[0], array, at)
        maximum, columns = spread(builder, top), cgutils.unpack_tuple(builder, seen, 2)

        with each_chunk(builder, row, bounds, columns, EXP_PARTS, EXP_PARTS * LANES) as chunk:
            before = chunk.load()
            less = [score - maximum for score in before]
            chunk.store(chunk.seen(_exp(builder, less), 0.0))
            chunk.restore_behind(end, before)
        return context.get_dummy_value()

    number = types.intp
    pair = types.UniTuple(number, 2)
    return types.void(scores, number, pair, pair, number, types.float32), codegen


@intrinsic
def sum_and_round(
    typing_context: Any,
    scores: Any,
    first: Any,
    chunks: Any,
    visible: Any,
    counted: Any,
    kind: Any,
    lanes: Any,
    fold_from: Any,
) -> Any:
    """Add up exponentials, then round them to probabilities, in place.

    A loop of its own: in one with `exponentials` the processor could not look far enough ahead.

    Parameters
    ----------
    scores, first, chunks, visible, counted
        As for `exponentials`.
    kind : int
        Kind to which probabilities are rounded, ties away from zero.
    lanes : float32 array of 64
        Running sums. Chunk c puts its 8 folded sums at ``8 * (c - fold_from)``, or, if `fold_from` is
        negative, is added lane by lane.
    fold_from : int
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, at, bounds, seen, end, to_kind, sums, fold_origin = args
        row = element_pointer(context, builder, signature.args[0], array, at)
        lane = element_pointer(context, builder, signature.args[6], sums, INDEX(0))
        folds = builder.icmp_signed(">=", fold_origin, INDEX(0))
        columns = cgutils.unpack_tuple(builder, seen, 2)

        with each_chunk(builder, row, bounds, columns) as chunk:
            before = chunk.load()
            values = chunk.seen(before, 0.0)
            # Eight columns give one folded sum.
            origin = builder.mul(fold_origin, INDEX(CHUNK))
            eights = builder.lshr(builder.sub(chunk.base, origin), INDEX(3))
            _add_or_fold(builder, values, lane, builder.select(folds, eights, INDEX(-1)))
            _store_probabilities(chunk, values, to_kind)
            chunk.restore_behind(end, before)
        return context.get_dummy_value()

    number = types.intp
    pair = types.UniTuple(number, 2)
    return types.void(scores, number, pair, pair, number, number, lanes, number), codegen


def _fold_all(value: Value) -> Any:
    """Add all numbers of a vector as the reduction unit does: pairs, pairs of pairs, and so on."""
    while value.ir.type.count > 1:
        firsts = list(range(0, value.ir.type.count, 2))
        value = value.lanes(firsts) + value.lanes([lane + 1 for lane in firsts])
    return value.builder.extract_element(value.ir, _INT(0))


@intrinsic
def narrow_probabilities(
    typing_context: Any, scores: Any, first: Any, chunks: Any, visible: Any, counted: Any, maximum: Any,
    kind: Any,
) -> Any:  # fmt: skip
    """Do what `exponentials` and `sum_and_round` do, for up to NARROW_COLUMNS; return their sum.

    All that the reduction unit adds to these columns is 0.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        array, at, bounds, seen, end, top, to_kind = args
        row = element_pointer(context, builder, signature.args[0], array, at)
        columns = cgutils.unpack_tuple(builder, seen, 2)
        total = cgutils.alloca_once_value(builder, _FLOAT(0.0))

        def emit(parts: int) -> None:
            with each_chunk(builder, row, bounds, columns, parts) as chunk:
                before = chunk.load()
                less = [score - spread(builder, top) for score in before]
                values = chunk.seen(_exp(builder, less), 0.0)
                builder.store(_fold_all(concatenate(values)), total)
                _store_probabilities(chunk, values, to_kind)
                chunk.restore_behind(end, before)

        for_each_width(builder, end, emit, NARROW_PARTS)
        return builder.load(total, typ=_FLOAT)

    number = types.intp
    pair = types.UniTuple(number, 2)
    return types.float32(scores, number, pair, pair, number, types.float32, number), codegen


@intrinsic
def fold_lanes(typing_context: Any, lanes: Any, target: Any, target_at: Any) -> Any:
    """Add each 8 adjacent of 64 numbers as the reduction unit does, into 8 numbers."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        read = element_pointer(context, builder, signature.args[0], args[0], INDEX(0))
        write = element_pointer(context, builder, signature.args[1], args[1], args[2])
        store(_fold_chunk(load_chunk(builder, read)), write, 0)
        return context.get_dummy_value()

    return types.void(lanes, target, types.intp), codegen


@intrinsic
def sum_of_eight(typing_context: Any, numbers: Any) -> Any:
    """Add the first 8 numbers of an array as the reduction unit does."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        read = element_pointer(context, builder, signature.args[0], args[0], INDEX(0))
        return _fold_all(load(builder, read, 0, 8))

    return types.float32(numbers), codegen

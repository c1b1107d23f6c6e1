"""Matrix micro-kernels in vector registers, sized for the processor that Numba compiles for.

`multiply_block` keeps a block of MICRO_ROWS x PANEL_COLUMNS sums in registers and adds one product after
the other in ascending order of the reduction index: every element is the same chain of fused
multiply-adds whatever the block sizes are.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types

from tilesim.kernels._jit import intrinsic, jit_shared
from tilesim.kernels.expression import Value
from tilesim.kernels.processor import BLOCK
from tilesim.kernels.rounding import for_each_kind

MICRO_ROWS = BLOCK.rows
CACHE_LINE = 16
"""float32 elements of one cache line."""
PANEL_COLUMNS = BLOCK.lanes * BLOCK.vectors
"""Columns of one packed panel."""
STRIP_VECTORS = BLOCK.vectors // 2
STRIP_COLUMNS = PANEL_COLUMNS // 2
"""Columns of a strip, half a panel: where products may begin and end."""
MICRO_STRIPS = BLOCK.sums // STRIP_VECTORS
"""Strips that one micro-kernel call covers at most."""


@jit_shared
def padded_columns(columns: Any) -> Any:
    """Round a number of columns up to whole panels."""
    return (columns + PANEL_COLUMNS - 1) // PANEL_COLUMNS * PANEL_COLUMNS


@jit_shared
def padded_strips(columns: Any) -> Any:
    """Round a number of columns up to whole strips."""
    return (columns + STRIP_COLUMNS - 1) // STRIP_COLUMNS * STRIP_COLUMNS


Sums = list[list[Any]]
"""Vectors of a block of sums, row by row."""

INDEX = ir.IntType(64)
VECTOR = ir.VectorType(ir.FloatType(), BLOCK.lanes)
ZERO = ir.Constant(VECTOR, [0.0] * BLOCK.lanes)


def element_pointer(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """Return the address of one element of a 1-D array, in code under construction."""
    data = context.make_array(array_type)(context, builder, array).data
    return builder.gep(data, [offset])


def _vector_pointer(builder: Any, row: Any, part: int) -> Any:
    """Return the address of vector `part` of a row."""
    place = builder.gep(row, [INDEX(part * BLOCK.lanes)])
    return builder.bitcast(place, VECTOR.as_pointer())


def _rows(builder: Any, pointer: Any, stride: Any, rows: int) -> list[Any]:
    return [builder.gep(pointer, [builder.mul(stride, INDEX(row))]) for row in range(rows)]


def _multiply_add(module: Any) -> Any:
    name = f"llvm.{'fma' if BLOCK.fused else 'fmuladd'}.v{BLOCK.lanes}f32"
    return module.globals.get(name) or ir.Function(module, ir.FunctionType(VECTOR, [VECTOR] * 3), name)


def _spread(builder: Any, scalar: Any) -> Any:
    """Return a vector with `scalar` in every lane."""
    undefined = ir.Constant(VECTOR, ir.Undefined)
    lane = builder.insert_element(undefined, scalar, ir.IntType(32)(0))
    mask = ir.Constant(ir.VectorType(ir.IntType(32), BLOCK.lanes), [0] * BLOCK.lanes)
    return builder.shuffle_vector(lane, undefined, mask)


def _load_vector(builder: Any, row: Any, part: int) -> Any:
    return builder.load(_vector_pointer(builder, row, part), align=4, typ=VECTOR)


def _add_products(builder: Any, step: Any, a_rows: list[Any], b_row: list[Any], sums: Sums) -> Sums:
    """Add the products of one reduction index, given row `b_row` of B, to the block of sums."""
    multiply_add = _multiply_add(builder.module)
    added = []
    for a_row, row_sums in zip(a_rows, sums, strict=True):
        factor = _spread(builder, builder.load(builder.gep(a_row, [step]), typ=ir.FloatType()))
        added.append(
            [builder.call(multiply_add, [factor, *pair]) for pair in zip(b_row, row_sums, strict=True)]
        )
    return added


def _sum_products(
    builder: Any, count: Any, start: Sums, a_rows: list[Any], read: Callable[[Any], list[Any]]
) -> Sums:
    """Return `start` with the products of `count` reduction indices added, in ascending order.

    ``read(step)`` returns the vectors of row `step` of B.
    """

    def phis() -> Sums:
        return [[builder.phi(VECTOR) for _ in row] for row in start]

    def join(sums: Sums, values: Sums, block: Any) -> None:
        for sum_row, value_row in zip(sums, values, strict=True):
            for total, value in zip(sum_row, value_row, strict=True):
                total.add_incoming(value, block)

    entry = builder.block
    loop = builder.append_basic_block("multiply.loop")
    done = builder.append_basic_block("multiply.done")
    builder.cbranch(builder.icmp_signed(">", count, INDEX(0)), loop, done)

    builder.position_at_end(loop)
    step = builder.phi(INDEX)
    sums = phis()
    added = _add_products(builder, step, a_rows, read(step), sums)
    following = builder.add(step, INDEX(1))
    step.add_incoming(INDEX(0), entry)
    step.add_incoming(following, loop)
    join(sums, start, entry)
    join(sums, added, loop)
    builder.cbranch(builder.icmp_signed("<", following, count), loop, done)

    builder.position_at_end(done)
    totals = phis()
    join(totals, start, entry)
    join(totals, added, loop)
    return totals


def _store_block(builder: Any, c_rows: list[Any], totals: Sums) -> None:
    for c_row, row in zip(c_rows, totals, strict=True):
        for part, total in enumerate(row):
            builder.store(total, _vector_pointer(builder, c_row, part), align=4)


@intrinsic
def multiply_block(
    typing_context: Any, c: Any, c_offset: Any, c_stride: Any, a: Any, a_offset: Any, a_stride: Any,
    b: Any, b_panel: Any, first: Any, count: Any, depth: Any,
) -> Any:  # fmt: skip
    """Store ``A @ B`` of one register block into `c`.

    Arrays are 1-D float32, offsets and strides count elements. A is MICRO_ROWS x depth with row stride
    `a_stride`; C has MICRO_ROWS rows at stride `c_stride`, and takes the `count` strips from `first` on of B,
    whose panels lie `b_panel` apart; `count` is from 1 to MICRO_STRIPS.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        c_array, c_at, c_step, a_array, a_at, a_step, b_array, panel_step, strip, strips, steps = args
        c = element_pointer(context, builder, signature.args[0], c_array, c_at)
        a = element_pointer(context, builder, signature.args[3], a_array, a_at)
        b = element_pointer(context, builder, signature.args[6], b_array, INDEX(0))
        a_rows = _rows(builder, a, a_step, BLOCK.rows)
        c_first = builder.gep(c, [builder.mul(strip, INDEX(STRIP_COLUMNS))])
        c_rows = _rows(builder, c_first, c_step, BLOCK.rows)

        def begin_of(number: int) -> Any:
            """Return where a strip lies at reduction index 0."""
            wanted = builder.add(strip, INDEX(number))
            panel = builder.mul(builder.lshr(wanted, INDEX(1)), panel_step)
            column = builder.mul(builder.and_(wanted, INDEX(1)), INDEX(STRIP_COLUMNS))
            return builder.gep(b, [builder.add(panel, column)])

        def emit(number: int) -> None:
            begins = [begin_of(one) for one in range(number)]

            def read(step: Any) -> list[Any]:
                row = builder.mul(step, INDEX(PANEL_COLUMNS))
                return [
                    _load_vector(builder, builder.gep(begin, [row]), part)
                    for begin in begins
                    for part in range(STRIP_VECTORS)
                ]

            zeros = [[ZERO] * (number * STRIP_VECTORS)] * BLOCK.rows
            _store_block(builder, c_rows, _sum_products(builder, steps, zeros, a_rows, read))

        for_each_kind(builder, strips, {number: number for number in range(MICRO_STRIPS, 0, -1)}, emit)
        return context.get_dummy_value()

    number = types.intp
    block = (c, number, number, a, number, number, b, number, number)
    return types.void(*block, number, number), codegen


def few_rows_multiplier(rows: int, vectors: int, formulas: dict[int, Callable[[Value], Value]]) -> Any:
    """Return an intrinsic that adds ``A @ formula(B)`` of a block of few rows to `c`.

    It takes what `multiply_block` takes and, before the last argument, the pitch of B's rows and a key of
    `formulas`, the last of which stands for any other.
    """

    def typed(
        typing_context: Any, c: Any, c_offset: Any, c_stride: Any, a: Any, a_offset: Any, a_stride: Any,
        b: Any, b_offset: Any, b_stride: Any, kind: Any, depth: Any,
    ) -> Any:  # fmt: skip
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            c_array, c_at, c_step, a_array, a_at, a_step, b_array, b_at, b_step, chosen, count = args
            c = element_pointer(context, builder, signature.args[0], c_array, c_at)
            a = element_pointer(context, builder, signature.args[3], a_array, a_at)
            b = element_pointer(context, builder, signature.args[6], b_array, b_at)
            c_rows, a_rows = (_rows(builder, *place, rows) for place in ((c, c_step), (a, a_step)))

            def emit(formula: Callable[[Value], Value]) -> None:
                def read(step: Any) -> list[Any]:
                    row = builder.gep(b, [builder.mul(step, b_step)])
                    loaded = (Value(builder, _load_vector(builder, row, part)) for part in range(vectors))
                    return [formula(value).ir for value in loaded]

                start = [[_load_vector(builder, row, part) for part in range(vectors)] for row in c_rows]
                _store_block(builder, c_rows, _sum_products(builder, count, start, a_rows, read))

            for_each_kind(builder, chosen, formulas, emit)
            return context.get_dummy_value()

        number = types.intp
        block = (c, number, number, a, number, number, b, number, number)
        return types.void(*block, number, number), codegen

    return intrinsic(typed)


@intrinsic
def multiply_add(typing_context: Any, factor: Any, value: Any, summand: Any) -> Any:
    """Return ``factor * value + summand`` of float32 numbers, rounded as `multiply_block` does."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        one, two, three = (Value(builder, number) for number in args)
        return one.times_plus(two, three).ir

    number = types.float32
    return number(number, number, number), codegen


def _prefetcher(closeness: int) -> Any:
    """Return an intrinsic that asks for the cache line of an element of a 1-D array: 3 nearest, 0 farthest.

    Memory may end before the element: nothing is read.
    """

    def typed(typing_context: Any, array: Any, first: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            module, name = builder.module, "llvm.prefetch.p0"
            number = ir.IntType(32)
            pointer = ir.IntType(8).as_pointer()
            function = module.globals.get(name) or ir.Function(
                module, ir.FunctionType(ir.VoidType(), [pointer, number, number, number]), name
            )
            place = builder.bitcast(
                element_pointer(context, builder, signature.args[0], args[0], args[1]), pointer
            )
            builder.call(function, [place, number(0), number(closeness), number(1)])
            return context.get_dummy_value()

        return types.void(array, types.intp), codegen

    return intrinsic(typed)


prefetch = _prefetcher(3)
"""Into the nearest cache."""
prefetch_far = _prefetcher(2)
"""Into the second cache, which waits for far more lines at a time."""

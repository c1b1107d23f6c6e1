"""Arithmetic over whole arrays, emitted for vector registers.

Left to itself the compiler takes an index that may be negative, as Python allows, for one that jumps: it then
gathers and scatters element by element.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils

from tilesim.kernels._jit import intrinsic, jit_apart
from tilesim.kernels.expression import Value
from tilesim.kernels.rounding import EVEN_FORMULAS, for_each_kind
from tilesim.kernels.rows import INDEX, LANES, load, spread, store
from tilesim.kernels.vector import element_pointer

Formula = Callable[[Callable[[Value], Value], Value, Value, Value], Value]
"""Of a rounding, the element of the target, that of the source, and a number that is the same for all."""


def _elementwise(formula: Formula) -> Any:
    """Return an intrinsic that puts ``formula(rounded, target, source, number)`` into each target element.

    It takes target and source (1-D, float32, C order), how many elements, the number, and the kind of
    `rounding.py` to which ``rounded`` rounds, ties to even.
    """

    def typed(typing_context: Any, target: Any, source: Any, count: Any, number: Any, kind: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            size, scalar, chosen = args[2:]
            write, read = (
                element_pointer(context, builder, signature.args[i], args[i], INDEX(0)) for i in range(2)
            )

            def step(rounded: Any, lanes: int, at: Any, factor: Value) -> None:
                places = builder.gep(write, [at]), builder.gep(read, [at])
                mine, other = (load(builder, place, 0, lanes) for place in places)
                store(formula(rounded, mine, other, factor), places[0], 0)

            def emit(rounded: Callable[[Value], Value]) -> None:
                whole = builder.and_(size, INDEX(-LANES))
                for low, high, lanes in ((INDEX(0), whole, LANES), (whole, size, 1)):
                    factor = spread(builder, scalar, ir.VectorType(scalar.type, lanes))
                    with cgutils.for_range_slice(builder, low, high, INDEX(lanes)) as (at, _):
                        step(rounded, lanes, at, factor)

            for_each_kind(builder, chosen, EVEN_FORMULAS, emit)
            return context.get_dummy_value()

        return types.void(target, source, types.intp, types.float32, types.intp), codegen

    return intrinsic(typed)


_round = _elementwise(lambda rounded, target, source, number: rounded(source))
_multiply = _elementwise(lambda rounded, target, source, factor: rounded(source * factor))
_divide = _elementwise(lambda rounded, target, source, divisor: rounded(source / divisor))
_add = _elementwise(lambda rounded, target, source, number: rounded(target + rounded(source)))
_add_rescaled = _elementwise(
    lambda rounded, target, source, factor: rounded(rounded(target * factor) + rounded(source))
)


@jit_apart
def round_array(values: Any, out: Any, kind: Any) -> None:
    """Round float32 `values` into `out` (both 1-D, C order), ties to even."""
    _round(out, values, values.size, 0.0, kind)


@jit_apart
def multiply_array(values: Any, factor: Any, out: Any, kind: Any) -> None:
    """Put rounded products with `factor` into `out`."""
    _multiply(out, values, values.size, factor, kind)


@jit_apart
def divide_array(values: Any, divisor: Any, out: Any, kind: Any) -> None:
    """Put rounded quotients by `divisor` into `out`."""
    _divide(out, values, values.size, divisor, kind)


@jit_apart
def add_rescaled(accumulated: Any, factor: Any, values: Any, kind: Any) -> None:
    """Multiply `accumulated` by `factor` and add `values`, in place, rounding each value, product and sum.

    What is accumulated is of that kind already.
    """
    # From the second of many small tiles on, few rows find a new maximum.
    if factor == 1.0:
        _add(accumulated, values, values.size, 0.0, kind)
    else:
        _add_rescaled(accumulated, values, values.size, factor, kind)

"""Rounding of float values to half and bfloat16 precision, on the bits.

Values stay float32; after rounding they are representable in the narrow type. Two modes exist on the
chip: ties to even (what plain stores do) and ties away from zero (CAST_ROUND). Overflow gives infinity,
NaN stays NaN, subnormals are kept, the sign of zero is kept.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

from tilesim.kernels._jit import jit
from tilesim.kernels.expression import Value, larger_int, scalar_function, where
from tilesim.kernels.processor import BLOCK

FLOAT_KIND = 0
HALF_KIND = 1
BFLOAT16_KIND = 2

ABS_MASK = 0x7FFFFFFF
SIGN_MASK = -0x80000000
EXPONENT_MASK = 0x7F800000
LEADING_BIT = 0x400000
EXPONENT_STEP = 1 << 23
HALF_SMALLEST_NORMAL = 0x38800000
HALF_OVERFLOW = 0x477FF000
"""Bits of 65,520: the tie between the largest half, 65,504, and the next power of two, which is infinite."""


def _to_half_grid(x: Value, exponent: Value) -> Value:
    """Round to the spacing of halves of that exponent, ties to even; the sign of a zero is lost."""
    # Adding 1.5 * 2^(e + 13) leaves exactly the 10 fraction bits of a half behind the leading one.
    shifter = (exponent + (13 * EXPONENT_STEP + LEADING_BIT)).floats()
    return (x + shifter) - shifter


def _half_exponent(x: Value) -> Value:
    return larger_int(x.bits() & EXPONENT_MASK, HALF_SMALLEST_NORMAL)


def _finish_half(x: Value, rounded: Value) -> Value:
    signed = (rounded.bits() | (x.bits() & SIGN_MASK)).floats()
    return where((x.bits() & ABS_MASK).compare(">=", HALF_OVERFLOW), x * math.inf, signed)


def half_even_formula(x: Value) -> Value:
    """Round to half, ties to even."""
    if BLOCK.half:
        return x.through_half()
    return _finish_half(x, _to_half_grid(x, _half_exponent(x)))


def half_away_probability_formula(p: Value) -> Value:
    """Round numbers from 0 to 1 to half, ties away from zero: what `half_away` gives, in fewer steps."""
    # With its last bit set, a tie is no tie any more, and nothing else comes to lie on one.
    above = (p.bits() | 1).floats()
    return _to_half_grid(above, _half_exponent(above))


def half_away_formula(x: Value) -> Value:
    """Round to half, ties away from zero (CAST_ROUND)."""
    exponent = _half_exponent(x)
    even = _to_half_grid(x, exponent)
    # A tie that went to even towards zero is exactly half a spacing below: move it one spacing up.
    half_spacing = ((exponent - 11 * EXPONENT_STEP) | (x.bits() & SIGN_MASK)).floats()
    away = where((x - even).compare("==", half_spacing), x + half_spacing, even)
    return _finish_half(x, away)


def bfloat16_even_formula(x: Value) -> Value:
    """Round to bfloat16, ties to even."""
    bits = x.bits()
    rounded = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).floats()
    return where(x.compare("!=", x), x, rounded)


def bfloat16_away_formula(x: Value) -> Value:
    """Round to bfloat16, ties away from zero."""
    return where(x.compare("!=", x), x, ((x.bits() + 0x8000) & -0x10000).floats())


EVEN_FORMULAS = {HALF_KIND: half_even_formula, BFLOAT16_KIND: bfloat16_even_formula, FLOAT_KIND: lambda x: x}
"""Rounding to each kind, ties to even."""
PROBABILITY_FORMULAS = {
    HALF_KIND: half_away_probability_formula,
    BFLOAT16_KIND: bfloat16_away_formula,
    FLOAT_KIND: lambda x: x,
}
"""Rounding of numbers from 0 to 1 to each kind, ties away from zero."""


Choice = TypeVar("Choice")


def for_each_kind(
    builder: Any, kind: Any, formulas: dict[int, Choice], emit: Callable[[Choice], None]
) -> None:
    """Emit code for a kind known at run time: one branch for each formula, the last for any other kind."""
    (number, formula), *others = formulas.items()
    if not others:
        emit(formula)
        return
    with builder.if_else(builder.icmp_signed("==", kind, kind.type(number))) as (this, other):
        with this:
            emit(formula)
        with other:
            for_each_kind(builder, kind, dict(others), emit)


half_even = scalar_function(half_even_formula)
half_away = scalar_function(half_away_formula)
bfloat16_even = scalar_function(bfloat16_even_formula)
bfloat16_away = scalar_function(bfloat16_away_formula)


@jit
def round_even(x: Any, kind: Any) -> Any:
    """Round one value to the given kind, ties to even.

    In a loop with one kind the compiler moves the choice out of the loop and vectorises what is left.
    """
    if kind == HALF_KIND:
        return half_even(x)
    if kind == BFLOAT16_KIND:
        return bfloat16_even(x)
    return x


@jit
def round_away(x: Any, kind: Any) -> Any:
    """Round one value to the given kind, ties away from zero."""
    if kind == HALF_KIND:
        return half_away(x)
    if kind == BFLOAT16_KIND:
        return bfloat16_away(x)
    return x

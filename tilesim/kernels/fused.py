"""Multiplication and addition with one rounding, for NumPy numbers and arrays, which know no such operation.

Rounding twice, first to odd with enough bits to spare and then to nearest, gives the same as rounding once
(S. Boldo and G. Melquiond, "Emulation of FMA and correctly rounded sums: proved algorithms using rounding to
odd", 2008).
"""

from __future__ import annotations

from typing import Any

import numpy as np

_SPLITTER = 2.0**27 + 1
"""Veltkamp's: cuts a float64 into halves of 26 bits, whose products are exact."""


def fused_multiply_add(a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c`` rounded once, for float32 or float64 numbers or arrays.

    In float64 neither a number nor a product may come near the ends of the exponent's range, where the error
    of a product is no number of its own; in float32 anything goes.
    """
    if a.dtype == np.float32:
        # A product of two float32 numbers is exact in float64.
        return _sum_to_odd(a.astype(np.float64) * b, c.astype(np.float64)).astype(np.float32)
    product, low = _exact_product(a, b)
    high, middle = _exact_sum(low, c)
    total, rest = _exact_sum(product, high)
    once, twice = total + _sum_to_odd(middle, rest), a * b + c
    # Rounded twice, zeros have their sign, and what is not finite comes through.
    return np.where(np.isfinite(twice) & (once != 0.0), once, twice)[()]


def _exact_sum(x: Any, y: Any) -> tuple[Any, Any]:
    """Return the rounded sum and its error (Knuth)."""
    total = x + y
    part = total - x
    return total, (x - (total - part)) + (y - part)


def _split(x: Any) -> tuple[Any, Any]:
    scaled = x * _SPLITTER
    high = scaled - (scaled - x)
    return high, x - high


def _exact_product(x: Any, y: Any) -> tuple[Any, Any]:
    """Return the rounded product and its error (Dekker)."""
    product = x * y
    (x_high, x_low), (y_high, y_low) = _split(x), _split(y)
    return product, x_low * y_low - (((product - x_high * y_high) - x_low * y_high) - x_high * y_low)


def _sum_to_odd(x: Any, y: Any) -> Any:
    """Return the float64 sum; where it is not exact, that of its two neighbours whose last bit is 1."""
    total, error = _exact_sum(x, y)
    bits = np.asarray(total).view(np.int64)
    away = np.where((error > 0) == (total > 0), 1, -1)
    # A sum that is not finite has no error but NaN, which is neither above nor below 0.
    inexact = (error > 0) | (error < 0)
    return (bits + np.where(inexact & (bits & 1 == 0), away, 0)).view(np.float64)[()]

"""The exponential of float values: within 1 ulp of the correctly rounded result, vectorisable.

Range reduction to ``n * ln 2 + r`` with ``|r| <= ln 2 / 2``, a polynomial of degree 6 and a scaling by
``2^n`` in two steps, so that results below the smallest normal number are kept (gradual underflow).
No fused multiply-add is used: every machine gives the same bits.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tilesim.kernels._jit import jit
from tilesim.kernels.expression import Value, scalar_function, where

LOG2_E = 1.4426950408889634
LN2_HIGH = 0.693359375
"""ln 2 to 9 bits, so that its product with any |n| < 2^15 is exact."""
LN2_LOW = -2.1219444e-4

C2 = 0.49999994
C3 = 0.16666521
C4 = 0.04166839
C5 = 0.008368716
C6 = 0.0013814602
"""Minimax coefficients of (e^r - 1 - r) / r^2, relative error of e^r below 2^-29."""

UNDERFLOW = -126.0
"""Below this every result is zero; also keeps the exponent arithmetic in range."""
OVERFLOW = 126.0

# Adding 1.5 * 2^23 rounds to an integer n that then stands in the low bits; the extra 191 or 63 makes those
# bits the exponent field of 2^(n + 64) or 2^(n - 64).
SHIFT_DOWN = 12582912.0 + 191.0
SHIFT_UP = 12582912.0 + 63.0
SCALE_DOWN = 2.0**-64
SCALE_UP = 2.0**64


def _exp_scaled(d: Value, shift: float, scale: float) -> Value:
    shifted = d * LOG2_E + shift
    n = shifted - shift
    r = (d - n * LN2_HIGH) - n * LN2_LOW
    square = r * r
    low, high = r * C3 + C2, r * C5 + C4
    q = (square * C6 + high) * square + low
    p = (q * square + r) + 1.0
    power = (shifted.bits() << 23).floats()
    return (p * power) * scale


def exp_nonpositive_formula(d: Value) -> Value:
    """Return e^d for d <= 0, -inf or NaN."""
    return _exp_scaled(where(d.compare("<", UNDERFLOW), UNDERFLOW, d), SHIFT_DOWN, SCALE_DOWN)


def exp_positive_formula(d: Value) -> Value:
    """Return e^d for d >= 0, inf or NaN."""
    return _exp_scaled(where(d.compare(">", OVERFLOW), OVERFLOW, d), SHIFT_UP, SCALE_UP)


exp_nonpositive = scalar_function(exp_nonpositive_formula)
exp_positive = scalar_function(exp_positive_formula)


@jit
def exp_any(d: Any) -> Any:
    """Return e^d for any d: exp(-inf) = 0, exp(0) = 1, exp(inf) = inf, NaN for NaN."""
    return exp_positive(d) if d > np.float32(0.0) else exp_nonpositive(d)


@jit
def exp_exact(d: Any) -> Any:
    """Return e^d correctly rounded, by way of float64."""
    return np.float32(math.exp(np.float64(d)))

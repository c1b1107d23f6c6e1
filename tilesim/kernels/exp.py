"""The exponential of float values, correctly rounded but for about one argument in ten million.

The argument is widened to float64 and reduced by a multiple of ``ln 2`` to ``|r| <= ln 2 / 2``, or, where the
processor looks up vectors in a table of 16 numbers, by a multiple of ``ln 2 / 16``. A polynomial gives e^r
with a relative error below 2^-45; the result is scaled by a power of two and rounded once to float. Results
below the smallest normal number are kept (gradual underflow). The few misrounded results are next to the
right one.
"""

from __future__ import annotations

import numpy as np

from tilesim.kernels.expression import Value, lookup, scalar_function, where
from tilesim.kernels.processor import BLOCK
from tilesim.kernels.rounding import ABS_MASK, SIGN_MASK

LOG2_E = 1.4426950408889634
LN2 = 0.6931471805599453

C2, C3, C4, C5, C6, C7, C8, C9 = (
    0.49999999999663236,
    0.1666666666726718,
    0.04166666696295472,
    0.008333333094493564,
    0.0013888811019212941,
    0.00019841539552076064,
    2.488087393563536e-05,
    2.74930010372442e-06,
)
"""Minimax coefficients of e^r = 1 + r + C2 r^2 + ... on |r| <= ln 2 / 2."""

STEPS = 16
POWERS = np.array([2.0 ** (step / STEPS) for step in range(STEPS)])
SHORT_POWERS = (POWERS.view(np.int64) - (np.arange(STEPS) << 48)).view(np.float64).tolist()
"""Powers 2^(j / 16), their bits less j sixteenths of a step of the exponent."""
D2, D3, D4, D5 = 0.49999999986807636, 0.1666666666386786, 0.04166757475797389, 0.008333485267207936
"""Minimax coefficients of e^r = 1 + r + D2 r^2 + ... on |r| <= ln 2 / 32."""

LIMIT = 200.0
"""Beyond it on either side the result is 0 or infinite; keeps the exponent arithmetic in range."""

SHIFT = 1.5 * 2.0**52
FLOAT_SHIFT = 1.5 * 2.0**23
"""Adding one to a float64, the other to a float32, rounds to an integer that then stands in the low bits."""

LEAST_NORMAL = -87.33654
"""Below it e^x is no normal float32."""

TANH_IS_X = 2.0**-12


def _exp(x: Value) -> Value:
    d = x.widened()
    if BLOCK.lookup and hasattr(d.ir.type, "count"):
        return _exp_by_table(d).narrowed()
    return _exp_by_polynomial(d).narrowed()


def _exp_by_polynomial(d: Value) -> Value:
    shifted = d.times_plus(LOG2_E, SHIFT)
    n = shifted - SHIFT
    r = n.times_plus(-LN2, d)
    square = r * r
    low = square.times_plus(r.times_plus(C3, C2), r)
    middle, high = r.times_plus(C5, C4), r.times_plus(C7, C6)
    upper = square.times_plus(square.times_plus(r.times_plus(C9, C8), high), middle)
    p = (square * square).times_plus(upper, low) + 1.0
    return (p.bits() + (shifted.bits() << 52)).floats()


def _exp_by_table(d: Value) -> Value:
    shifted = d.times_plus(LOG2_E * STEPS, SHIFT)
    n = shifted - SHIFT
    r = n.times_plus(-LN2 / STEPS, d)
    square = r * r
    q = square.times_plus(r.times_plus(D5, D4), r.times_plus(D3, D2))
    less_one = square.times_plus(q, r)
    # n = 16 k + j: moved to the exponent, j reaches into the fraction, by as much as its power is short of.
    power = (lookup(SHORT_POWERS, shifted.bits()).bits() + (shifted.bits() << 48)).floats()
    return power.times_plus(less_one, power)


def exp_nonpositive_formula(x: Value) -> Value:
    """Return e^x for x <= 0, -inf or NaN."""
    return _exp(where(x.compare("<", -LIMIT), -LIMIT, x))


def exp_formula(x: Value) -> Value:
    """Return e^x for any x: exp(-inf) = 0, exp(0) = 1, exp(inf) = inf, NaN for NaN."""
    return exp_nonpositive_formula(where(x.compare(">", LIMIT), LIMIT, x))


def tanh_formula(x: Value) -> Value:
    """Return tanh x, within 1 ulp, for any x; NaN for NaN."""
    size = (x.bits() & ABS_MASK).floats()
    # Beyond 20 it is 1 to the last bit; `where` keeps NaN.
    d = where(size.compare(">", 20.0), 20.0, size).widened()
    e = _exp_by_polynomial(d * -2.0)
    bent = ((e * -1.0 + 1.0) / (e + 1.0)).narrowed()
    # Where 1 - e cancels, x - x^3 / 3 is x to the last bit.
    bent = where(size.compare("<", TANH_IS_X), size, bent)
    return (bent.bits() | (x.bits() & SIGN_MASK)).floats()


exp_any = scalar_function(exp_formula)
tanh = scalar_function(tanh_formula)

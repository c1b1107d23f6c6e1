"""The exponential of `exp.py` in float32 arithmetic, which also tells where it may have gone wrong.

The result is found as a sum of two floats with an error below `DOUBT`, and rounded with as much added and as
much taken away: where both give the same, that is the correctly rounded result. Vectors hold twice as many
float32 as float64, so that this pays although about one argument in two thousand has to be done again.
"""

from __future__ import annotations

import numpy as np

from tilesim.kernels.exp import FLOAT_SHIFT, LOG2_E
from tilesim.kernels.expression import Value, lookup

STEPS = 32
STEP = np.log(2.0) / STEPS
STEP_HIGH = float(np.float32(STEP))
"""The step as a float: a multiple of it, taken from the argument, leaves an exact difference."""
STEP_LOW = STEP - STEP_HIGH
_POWERS = np.exp2(np.arange(STEPS) / STEPS).astype(np.float32)
POWERS: list[float] = _POWERS.tolist()
"""Powers 2^(j / 32), rounded to float."""
CORRECTIONS: list[float] = (np.arange(STEPS) * STEP - np.log(_POWERS.astype(np.float64))).tolist()
"""What each exponent has more than the logarithm of the rounded power."""
C2, C3, C4 = 0.5, 0.16666752, 0.041666914
"""Minimax coefficients of e^r = 1 + r + C2 r^2 + ... on |r| <= ln 2 / 64, relative error below 2^-42."""

DOUBT = 2.0**-35
"""More than the error of the unrounded result, which lies between 0.98 and 2."""


def quick_exp_formula(x: Value) -> tuple[Value, Value, Value]:
    """Return e^x for ``LEAST_NORMAL <= x <= 0``, and two values that are equal where it is correctly rounded.

    Below, none of them means anything. Where x is not finite, they differ (NaN differs from itself). Needs
    `RegisterBlock.lookup`.
    """
    shifted = x.times_plus(LOG2_E * STEPS, FLOAT_SHIFT)
    n = shifted - FLOAT_SHIFT
    high = n.times_plus(-STEP_HIGH, x)
    low = n.times_plus(-STEP_LOW, lookup(CORRECTIONS, shifted.bits()))
    r = high + low
    square = r * r
    less = square.times_plus(r.times_plus(r.times_plus(C4, C3), C2), low)
    # e^x = power * (1 + high + less): `near` and what its rounding lost, then the rest.
    power = lookup(POWERS, shifted.bits())
    near = power.times_plus(high, power)
    rest = power.times_plus(less, power.times_plus(high, power - near))
    most, least = near + (rest + DOUBT), near + (rest - DOUBT)
    exponent = (shifted.bits() & -STEPS) << 18
    return (most.bits() + exponent).floats(), most, least

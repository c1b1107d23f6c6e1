"""The float exponential: at most one step from the correctly rounded result, over the whole range."""

import numpy as np
import pytest

from tilesim.kernels import exp
from tilesim.kernels._jit import jit


@jit
def _any(values, out):
    for i in range(values.size):
        out[i] = exp.exp_any(values[i])


@jit
def _nonpositive(values, out):
    for i in range(values.size):
        out[i] = exp.exp_nonpositive(values[i])


@jit
def _exact(values, out):
    for i in range(values.size):
        out[i] = exp.exp_exact(values[i])


def run(function, values):
    values = np.ascontiguousarray(values, np.float32)
    out = np.empty_like(values)
    function(values, out)
    return out


def correct(values):
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        return np.exp(values.astype(np.float64)).astype(np.float32)


def steps(a, b):
    """Number of float32 values between two arrays of non-negative numbers."""
    return np.abs(a.view(np.int32).astype(np.int64) - b.view(np.int32).astype(np.int64))


@pytest.mark.parametrize("sign", [0, 1])
def test_one_ulp_over_every_finite_exponent(sign):
    bits = np.arange(0, 0x7F800000, 521, dtype=np.int64) + (sign << 31)
    values = bits.astype(np.uint32).view(np.float32)
    assert steps(run(_any, values), correct(values)).max() <= 1


def test_one_ulp_densely_where_results_are_neither_zero_nor_one():
    values = -np.linspace(0, 105, 3_000_001).astype(np.float32)
    got = run(_nonpositive, values)
    assert steps(got, correct(values)).max() <= 1
    assert steps(got, run(_any, values)).max() == 0


def test_subnormal_results_are_kept():
    values = np.linspace(-103.9, -87.4, 100_001).astype(np.float32)
    assert (run(_any, values) > 0).all()
    assert steps(run(_any, values), correct(values)).max() <= 1


def test_special_values():
    values = np.array([0.0, -0.0, -np.inf, np.inf, np.nan, -3.4e38, 3.4e38, 88.72284, 88.72283], np.float32)
    got = run(_any, values)
    assert got[:2].tolist() == [1.0, 1.0]
    assert got[2] == 0.0
    assert got[3] == np.inf
    assert np.isnan(got[4])
    assert got[5:8].tolist() == [0.0, np.inf, np.inf]
    assert np.isfinite(got[8])


def test_nonpositive_special_values():
    got = run(_nonpositive, np.array([0.0, -0.0, -np.inf, np.nan, -126.0, -1e30], np.float32))
    assert got[[0, 1, 2, 4, 5]].tolist() == [1.0, 1.0, 0.0, 0.0, 0.0]
    assert np.isnan(got[3])


def test_the_exact_one_is_correctly_rounded():
    values = np.linspace(-104, 88, 200_001).astype(np.float32)
    assert steps(run(_exact, values), correct(values)).max() == 0


def test_never_grows_when_the_argument_falls_by_a_visible_step():
    values = -np.linspace(0, 100, 1_000_001).astype(np.float32)
    got = run(_nonpositive, values)
    assert (np.diff(got) <= np.spacing(got[1:])).all()

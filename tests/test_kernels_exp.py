"""The float exponential: at most one step from the correctly rounded result, over the whole range."""

import numpy as np
import pytest
from tiny_results import exp_each

from tilesim.kernels import rows
from tilesim.kernels._jit import jit_entry
from tilesim.kernels.rounding import FLOAT_KIND


@jit_entry
def _row(scores, lanes):
    chunks = (0, scores.size // rows.CHUNK)
    visible = (0, scores.size)
    rows.exponentials(scores, 0, chunks, visible, scores.size, np.float32(0.0))
    rows.sum_and_round(scores, 0, chunks, visible, scores.size, FLOAT_KIND, lanes, -1)


def row_exp(values):
    """What the passes over a row make of scores less their maximum."""
    padded = np.zeros(-(-values.size // rows.CHUNK) * rows.CHUNK, np.float32)
    padded[: values.size] = values
    _row(padded, np.zeros(rows.CHUNK, np.float32))
    return padded[: values.size]


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
    assert steps(run(exp_each, values), correct(values)).max() <= 1


def test_one_ulp_densely_where_results_are_neither_zero_nor_one():
    values = -np.linspace(0, 105, 3_000_001).astype(np.float32)
    got = run(exp_each, values)
    assert steps(got, correct(values)).max() <= 1


def test_subnormal_results_are_kept():
    values = np.linspace(-103.9, -87.4, 100_001).astype(np.float32)
    assert (run(exp_each, values) > 0).all()
    assert steps(run(exp_each, values), correct(values)).max() <= 1


def test_special_values():
    values = np.array([0.0, -0.0, -np.inf, np.inf, np.nan, -3.4e38, 3.4e38, 88.72284, 88.72283], np.float32)
    got = run(exp_each, values)
    assert got[:2].tolist() == [1.0, 1.0]
    assert got[2] == 0.0
    assert got[3] == np.inf
    assert np.isnan(got[4])
    assert got[5:8].tolist() == [0.0, np.inf, np.inf]
    assert np.isfinite(got[8])


def test_only_about_one_in_ten_million_is_not_correctly_rounded(rng):
    """What keeps a row sum of 512 exponentials within one ulp of the sum of correctly rounded ones."""
    values = rng.uniform(-90, 0, 4_000_000).astype(np.float32)
    assert (steps(run(exp_each, values), correct(values)) > 0).sum() <= 8


def test_row_passes_use_the_same_exponential(rng):
    scores = rng.uniform(-120, 0, 64 * 500).astype(np.float32)
    scores[:3] = -np.inf, np.nan, -0.0
    np.testing.assert_array_equal(row_exp(scores), run(exp_each, scores))


@pytest.mark.parametrize("least", [-1e-3, -1.0, -20.0, -87.4, -104.5])
def test_row_passes_round_as_rarely_wrong(rng, least):
    """Also where float arithmetic alone could not tell which way to round, and where it does not reach."""
    values = rng.uniform(least, 0, 2_000_000).astype(np.float32)
    missed = steps(row_exp(values), correct(values))
    assert missed.max() <= 1
    assert (missed > 0).sum() <= 6


def test_row_passes_at_the_seams(rng):
    """Next to the multiples of half a table's step, to the least normal result and to the least of all."""
    seams = np.concatenate([-np.log(2) / 64 * np.arange(9_700), [-87.33654, -103.972, -104.0]])
    near = seams.astype(np.float32).view(np.int32)[:, None] + np.arange(-8, 9, dtype=np.int32)
    values = near.reshape(-1).view(np.float32)
    values = values[values <= 0]
    rng.shuffle(values)
    missed = steps(row_exp(values), correct(values))
    assert missed.max() <= 1
    assert (missed > 0).sum() <= 2


@pytest.mark.parametrize("place", [0, 17, 63])
@pytest.mark.parametrize("odd", [-np.inf, np.nan, -87.5, -200.0])
def test_one_odd_number_leaves_its_chunk_as_it_is(place, odd):
    values = np.linspace(-8, 0, 128).astype(np.float32)
    wanted = correct(values)
    values[place] = odd
    wanted[place] = correct(np.float32([odd]))[0]
    np.testing.assert_array_equal(row_exp(values), wanted)


@pytest.mark.skipif("not config.getoption('fuzz')", reason="takes half a minute: ask with --fuzz")
def test_every_number_with_a_result_but_zero():
    missed = 0
    last = int(np.float32(-104.5).view(np.uint32))
    for first in range(0x80000000, last, 1 << 22):
        values = np.arange(first, min(first + (1 << 22), last), dtype=np.uint32).view(np.float32)
        off = steps(row_exp(values), correct(values))
        assert off.max() <= 1
        missed += (off > 0).sum()
    assert missed <= 200


def test_never_grows_when_the_argument_falls_by_a_visible_step():
    values = -np.linspace(0, 100, 1_000_001).astype(np.float32)
    got = run(exp_each, values)
    assert (np.diff(got) <= np.spacing(got[1:])).all()

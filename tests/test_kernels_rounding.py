"""Rounding on the bits against NumPy, ml_dtypes and exact arithmetic."""

from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from tilesim.kernels import rounding, rows
from tilesim.kernels._jit import jit_entry

KINDS = {"half": rounding.HALF_KIND, "bfloat16": rounding.BFLOAT16_KIND, "float": rounding.FLOAT_KIND}
NARROW = {"half": np.float16, "bfloat16": ml_dtypes.bfloat16}


@jit_entry
def _each(values, out, kind, away):
    for i in range(values.size):
        out[i] = rounding.round_away(values[i], kind) if away else rounding.round_even(values[i], kind)


@jit_entry
def _probabilities(values, kind, lanes):
    visible = (0, values.size)
    rows.sum_and_round(values, 0, (0, values.size // rows.CHUNK), visible, values.size, kind, lanes, -1)


def rounded(values, kind, *, away=False):
    values = np.ascontiguousarray(values, np.float32)
    out = np.empty_like(values)
    _each(values, out, KINDS[kind], away)
    return out


def assert_same_bits(got, expected):
    same = (got.view(np.int32) == expected.view(np.int32)) | (np.isnan(got) & np.isnan(expected))
    assert same.all(), (got[~same][:4], expected[~same][:4])


def every_value(kind):
    with np.errstate(invalid="ignore"):
        return np.arange(65536, dtype=np.uint16).view(NARROW[kind]).astype(np.float32)


def around_midpoints(kind):
    """Every midpoint between neighbours, and the float32 numbers next to it on both sides."""
    values = np.unique(every_value(kind)[np.isfinite(every_value(kind))]).astype(np.float64)
    middle = ((values[1:] + values[:-1]) / 2).astype(np.float32)
    up, down = np.nextafter(middle, np.float32(np.inf)), np.nextafter(middle, np.float32(-np.inf))
    return np.concatenate([middle, up, down])


def random_patterns():
    bits = np.random.default_rng(1).integers(0, 2**32, 1_000_000, dtype=np.uint64)
    return bits.astype(np.uint32).view(np.float32)


@pytest.mark.parametrize("kind", ["half", "bfloat16"])
@pytest.mark.parametrize("make", [every_value, around_midpoints, lambda kind: random_patterns()])
def test_ties_to_even_matches_the_ieee_conversion(kind, make):
    values = make(kind)
    with np.errstate(over="ignore", invalid="ignore"):
        expected = values.astype(NARROW[kind]).astype(np.float32)
    assert_same_bits(rounded(values, kind), expected)


@pytest.mark.parametrize("kind", ["half", "bfloat16"])
def test_representable_values_stay(kind):
    values = every_value(kind)
    assert_same_bits(rounded(values, kind), values)
    assert_same_bits(rounded(values, kind, away=True), values)


@pytest.mark.parametrize("kind", ["half", "bfloat16"])
def test_ties_away_differs_from_even_at_ties_only_and_there_grows(kind):
    values = np.concatenate([around_midpoints(kind), random_patterns()])
    values = values[np.isfinite(values)]
    even, away = rounded(values, kind), rounded(values, kind, away=True)
    wide = values.astype(np.float64)
    with np.errstate(invalid="ignore"):
        tie = np.abs(even.astype(np.float64) - wide) == np.abs(away.astype(np.float64) - wide)
        differs = even != away
        assert (tie[differs & np.isfinite(away)]).all()
        assert (np.abs(away[differs]) > np.abs(wide[differs])).all()
    assert differs.sum() > 1000


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (65504.0, 65504.0),
        (65519.99609375, 65504.0),
        (65520.0, np.inf),
        (-65520.0, -np.inf),
        (2049.0, 2048.0),
        (2051.0, 2052.0),
        (2.0**-25, 0.0),
        (2.0**-25 * (1 + 2.0**-23), 2.0**-24),
        (3 * 2.0**-25, 2 * 2.0**-24),
        (-0.0, -0.0),
        (np.inf, np.inf),
    ],
)
def test_half_even_at_the_edges(x, expected):
    assert_same_bits(rounded([x], "half"), np.array([expected], np.float32))


@pytest.mark.parametrize(
    ("x", "expected"),
    [
        (2049.0, 2050.0),
        (-2049.0, -2050.0),
        (2.0**-25, 2.0**-24),
        (-(2.0**-25), -(2.0**-24)),
        (0.5 + 2.0**-12, 0.5 + 2.0**-11),
        (2.0**-25 * (1 - 2.0**-24), 0.0),
        (65519.99609375, 65504.0),
        (65520.0, np.inf),
    ],
)
def test_half_away_at_the_edges(x, expected):
    assert_same_bits(rounded([x], "half", away=True), np.array([expected], np.float32))


def test_half_away_against_exact_fractions():
    values = np.concatenate([around_midpoints("half")[::97], random_patterns()[:3000]])
    values = values[np.isfinite(values) & (np.abs(values) < 65520)]
    for x, got in zip(values.tolist(), rounded(values, "half", away=True).tolist(), strict=True):
        exact = abs(Fraction(x))
        exponent = max(int(np.floor(np.log2(float(exact)))) if exact else -14, -14)
        spacing = Fraction(2) ** (exponent - 10)
        expected = (exact / spacing + Fraction(1, 2)).__floor__() * spacing
        assert abs(Fraction(got)) == expected, x


def test_float_kind_changes_nothing():
    values = random_patterns()
    assert_same_bits(rounded(values, "float"), values)
    assert_same_bits(rounded(values, "float", away=True), values)


def test_nan_stays_nan():
    for kind in KINDS:
        for away in (False, True):
            assert np.isnan(rounded([np.nan, -np.nan], kind, away=away)).all()


@pytest.mark.parametrize("kind", ["half", "bfloat16"])
def test_probabilities_round_away_at_every_tie_and_next_to_it(kind):
    grid = every_value(kind)
    grid = np.unique(np.abs(grid[np.abs(grid) <= 1])).astype(np.float64)
    middle = ((grid[1:] + grid[:-1]) / 2).astype(np.float32)
    # Beside subnormal numbers of bfloat16 there is no float between a midpoint and them.
    below = np.maximum(np.nextafter(middle, np.float32(0)), grid[:-1].astype(np.float32))
    values = np.concatenate([grid, middle, below, np.nextafter(middle, np.float32(1))]).astype(np.float32)
    wanted = np.concatenate([grid, grid[1:], grid[:-1], grid[1:]]).astype(np.float32)
    got = np.zeros(-(-values.size // rows.CHUNK) * rows.CHUNK, np.float32)
    got[: values.size] = values
    _probabilities(got, KINDS[kind], np.zeros(rows.CHUNK, np.float32))
    assert_same_bits(got[: values.size], wanted)

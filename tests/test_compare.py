"""Error figures against small cases worked out by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tilesim import compare
from tilesim.compare import error_stats
from tilesim.errors import InputError


def test_identical_arrays_have_no_error(rng):
    x = rng.standard_normal((3, 5))
    stats = error_stats(x, x)
    assert stats.to_dict() == {
        "max_abs": 0.0,
        "rms": 0.0,
        "max_rel": 0.0,
        "max_ulp_half": 0.0,
        "cosine_distance": 0.0,
        "overflow_count": 0,
        "underflow_count": 0,
        "nan_count": 0,
        "count": 15,
        "stalled_sums": None,
        "underflowed_exp_max": None,
        "dominant_effect": None,
    }


def test_figures_of_a_case_worked_out_by_hand():
    stats = error_stats([1.0, 2.5, 0.0, 4.0], [1.0, 2.0, 0.25, 3.0])
    assert stats.max_abs == 1.0
    assert stats.rms == pytest.approx(math.sqrt((0.5**2 + 0.25**2 + 1.0) / 4))
    assert stats.max_rel == 1.0  # the 0 that should be 0.25
    assert stats.max_ulp_half == 0.25 / 2**-12  # half has the spacing 2^-12 at 0.25
    dot, lengths = 1 + 5 + 12, math.sqrt((1 + 6.25 + 16) * (1 + 4 + 0.0625 + 9))
    assert stats.cosine_distance == pytest.approx(1 - dot / lengths)
    assert (stats.overflow_count, stats.underflow_count, stats.nan_count, stats.count) == (0, 1, 0, 4)


def test_ulp_of_half_at_its_borders():
    smallest, unit_at_top = 2.0**-24, 32.0
    assert error_stats([3 * smallest], [2.0**-20]).max_ulp_half == 16 - 3
    assert error_stats([65504.0 - unit_at_top], [65504.0]).max_ulp_half == 1.0
    assert error_stats([1e6 + 64.0], [1e6]).max_ulp_half == 2.0


def test_correct_rounding_to_half_is_within_half_an_ulp(rng):
    x = rng.standard_normal(10_000) * np.exp(rng.uniform(-20, 10, 10_000))
    assert 0.45 < error_stats(x.astype(np.float16), x).max_ulp_half <= 0.5


def test_values_that_are_not_finite():
    inf, nan = math.inf, math.nan
    agree = error_stats([inf, -inf, nan, 1.0], [inf, -inf, nan, 1.0])
    assert agree.max_abs == agree.rms == agree.cosine_distance == 0.0
    overflow = error_stats([inf, 1.0], [7e4, 1.0])
    assert overflow.overflow_count == 1
    assert overflow.max_abs == overflow.rms == overflow.max_rel == inf
    wrong_sign = error_stats([inf], [-inf])
    assert wrong_sign.max_abs == inf
    assert wrong_sign.overflow_count == 0
    lost = error_stats([nan, 2.0], [1.0, 2.0])
    assert lost.nan_count == 1
    assert math.isnan(lost.max_abs)
    assert math.isnan(lost.rms)
    assert math.isnan(lost.cosine_distance)
    hidden = error_stats([1.0], [nan])
    assert hidden.nan_count == 0
    assert math.isnan(hidden.max_abs)


def test_json_has_null_for_what_is_not_finite():
    figures = error_stats([math.inf], [1.0]).to_dict()
    assert figures["max_abs"] is None
    assert figures["overflow_count"] == 1


def test_cosine_distance_keeps_tiny_angles():
    reference = np.array([1.0, 0.0])
    assert error_stats([1.0, 1e-9], reference).cosine_distance == pytest.approx(0.5e-18)
    assert error_stats([-1.0, 0.0], reference).cosine_distance == pytest.approx(2.0)
    assert error_stats([0.0, 0.0], reference).cosine_distance == 1.0
    assert error_stats([1e300, 1e300], [1e-300, 1e-300]).cosine_distance == pytest.approx(0.0, abs=1e-15)


@given(st.integers(1, 40), st.integers(0, 2**32 - 1))
def test_chunks_change_nothing(size, seed):
    rng = np.random.default_rng(seed)
    reference = rng.standard_normal(size)
    output = reference.astype(np.float16)
    whole = error_stats(output, reference)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compare, "_CHUNK", 7)
        parts = error_stats(output, reference)
    assert parts.max_abs == whole.max_abs
    assert parts.rms == pytest.approx(whole.rms, rel=1e-12)
    assert parts.cosine_distance == pytest.approx(whole.cosine_distance, rel=1e-9)


def test_empty_arrays_have_no_error():
    assert error_stats(np.zeros((0, 3)), np.zeros((0, 3))).count == 0


def test_shapes_must_match():
    with pytest.raises(InputError, match=r"\(2,\).*\(3,\)"):
        error_stats(np.zeros(2), np.zeros(3))

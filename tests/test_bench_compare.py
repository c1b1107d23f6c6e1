"""Verdicts on samples of two sides; nothing here is timed."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from verdict import judge, median_interval, split_first_call

MS, US = 1e-3, 1e-6


def noisy():
    """Return 30 samples around 1 ms, as many with three stalls, and the first ones 12% slower."""
    rng = np.random.default_rng(139)
    base = rng.lognormal(0.0, 0.02, 30)
    stalled = rng.lognormal(0.0, 0.02, 30)
    stalled[[4, 17, 25]] *= 5
    return base * MS, stalled * MS, base[rng.permutation(30)] * 1.12 * MS


def test_stalls_are_no_regression_though_the_mean_is_40_percent_up():
    base, stalled, _ = noisy()
    got = judge(base, stalled, floor_s=0)
    assert stalled.mean() > 1.4 * base.mean()
    assert got.outcome == "no regression"
    assert got.median_ratio == pytest.approx(1.00252282329, rel=1e-11)
    assert got.min_ratio == pytest.approx(1.02399354572, rel=1e-11)
    low, high = got.noise_interval
    assert 0.97 < low < 1 < high < 1.03
    assert judge(stalled, base, floor_s=0).outcome == "no regression"


def test_12_percent_beyond_the_noise_is_a_regression_and_the_reverse_is_faster():
    base, _, slower = noisy()
    got = judge(base, slower)
    assert got.outcome == "regression"
    assert got.median_ratio == pytest.approx(1.12)
    assert got.min_ratio == pytest.approx(1.12)
    assert got.noise_interval[0] > 1
    assert "+12.0%" in got.reason
    assert judge(slower, base).outcome == "faster"
    assert judge(base, slower, threshold=0.15).outcome == "no regression"


def test_a_difference_below_the_floor_is_no_regression():
    got = judge(np.full(20, 2.0e-3 * MS), np.full(20, 2.6e-3 * MS))
    assert got.outcome == "no regression"
    assert got.median_ratio == pytest.approx(1.3)
    assert got.reason == "+30.0%, but 0.6 us is below the floor of 10 us"
    assert judge(np.full(20, 2.0 * US), np.full(20, 2.6 * US), floor_s=0.5 * US).outcome == "regression"


@pytest.mark.parametrize("count", [1, 6])
def test_too_few_samples_are_inconclusive(count):
    got = judge([0.0305] * count, [0.0305 * 1.84] * count)
    assert got.outcome == "inconclusive"
    assert got.median_ratio == pytest.approx(1.84)
    assert "take more samples, at least 7 a side" in got.reason


STEADY = [0.0300, 0.0302, 0.0305, 0.0304, 0.0301, 0.0303, 0.0306]


@pytest.mark.parametrize("side", ["base", "head"])
@pytest.mark.parametrize("place", range(7))
def test_one_stall_of_seven_hides_and_makes_no_regression(side, place):
    stalled = [x * (20 if index == place else 1) for index, x in enumerate(STEADY)]
    base, head = (stalled, STEADY) if side == "base" else (STEADY, stalled)
    assert judge(base, head).outcome == "no regression"
    assert judge(base, [1.2 * x for x in head]).outcome == "regression"
    assert judge([1.2 * x for x in base], head).outcome == "faster"


def test_a_slowdown_within_the_noise_asks_for_more_samples():
    base = [0.030, 0.036, 0.028, 0.041, 0.033, 0.029, 0.038]
    got = judge(base, [1.15 * x for x in base])
    assert got.outcome == "inconclusive"
    assert got.noise_interval[0] < 1
    assert "take more samples" in got.reason
    # A machine this noisy cannot show that nothing got slower either.
    assert judge(base, base).outcome == "inconclusive"


@pytest.mark.parametrize("side", ["base", "head"])
@pytest.mark.parametrize("value", [0, 0.0, -1.0, math.nan, math.inf, None, "fast"])
def test_samples_that_are_no_seconds_are_an_error(side, value):
    samples = {"base": STEADY, "head": STEADY, side: [*STEADY[:2], value, *STEADY]}
    got = judge(samples["base"], samples["head"])
    assert got.outcome == "error"
    assert got.reason == f"{side}: sample 3 is {value!r}; must be seconds above 0"
    assert got.median_ratio is got.min_ratio is got.noise_interval is None


def test_no_samples_are_an_error():
    assert judge([], STEADY).reason == "base: no samples; must be seconds above 0"


SAMPLES = st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=40)


@given(SAMPLES, SAMPLES)
def test_what_is_flagged_is_beyond_threshold_floor_and_noise(base, head):
    got = judge(base, head)
    low, high = got.noise_interval
    assert low <= got.median_ratio <= high
    if got.outcome in ("regression", "faster"):
        assert min(len(base), len(head)) >= 7
        assert abs(np.median(head) - np.median(base)) >= 10e-6
        assert low > 1 if got.outcome == "regression" else high < 1
        assert got.median_ratio > 1.1 if got.outcome == "regression" else got.median_ratio < 1 / 1.1
    assert (got.outcome == "regression") == (judge(head, base).outcome == "faster")
    assert judge(sorted(base), sorted(head)) == got


def test_equal_sides_are_hardly_ever_flagged(rng):
    """1 of 60 by the noise alone at 7 samples, and these must be beyond the threshold as well."""
    flagged = sum(
        judge(rng.lognormal(0, 0.3, 7), rng.lognormal(0, 0.3, 7)).outcome == "regression" for _ in range(2000)
    )
    assert flagged / 2000 < 1 / 60


@pytest.mark.parametrize(
    ("count", "ranks"), [(1, (0, 0)), (2, (0, 1)), (6, (0, 5)), (7, (1, 5)), (10, (2, 7)), (30, (10, 19))]
)
def test_the_interval_of_a_median_is_between_order_statistics(count, ranks, rng):
    assert median_interval(rng.permutation(count)) == ranks
    below = sum(math.comb(count, index) for index in range(ranks[0] + 1)) / 2**count
    assert below <= 1 / 16 or ranks[0] == 0


def test_the_first_call_is_reported_apart():
    assert split_first_call([17.2] + [0.0305] * 9) == (17.2, [0.0305] * 9)
    assert split_first_call(STEADY) == (None, STEADY)
    assert split_first_call([0.5]) == (None, [0.5])
    assert split_first_call([]) == (None, [])
    assert split_first_call([None, 1.0, 1.0]) == (None, [None, 1.0, 1.0])

"""Inputs that broke real kernels, part one: masks, special values, what half does to states and scores."""

import numpy as np
import pytest
from hostile import FLOATS, HALVES, attend, explicit, hostile, simulate, state

import tilesim as ts
from tilesim.compare import error_stats

EVERY = list(ts.PRECISIONS)


@hostile("TS01", "bool keep-mask", "same mask given as additive 0 / -inf")
@pytest.mark.parametrize("name", EVERY)
def test_rows_with_no_key_at_all(case, name):
    x = case.recipe()
    expected = hostile_expected("TS01", "bool keep-mask")
    mask = x.keep if case.name == "bool keep-mask" else np.where(x.keep, 0.0, -np.inf).astype(np.float32)
    output, lse = attend(x.q, x.k, x.v, name, mask=mask, scale=x.scale)
    same, same_lse = attend(x.q, x.k, x.v, name, mask=x.keep, scale=x.scale)
    np.testing.assert_array_equal(output, same)
    np.testing.assert_array_equal(lse, same_lse)
    tolerance = 2e-5 if name in FLOATS else 5e-3
    assert not np.isnan(output).any()
    assert not output[[3, 12]].any()
    assert np.isneginf(lse[[3, 12]]).all()
    np.testing.assert_allclose(output[0, :4], expected["out_0_0to3"], atol=tolerance)
    np.testing.assert_allclose(output[15, :4], expected["out_15_0to3"], atol=tolerance)
    assert lse[0] == pytest.approx(expected["lse_0"], abs=tolerance)
    assert np.abs(output).max() == pytest.approx(expected["max_abs_out"], abs=tolerance)


def hostile_expected(identifier, name):
    from hostile import CASES

    return next(v["expected"] for v in CASES[identifier]["variants"] if v["name"] == name)


@hostile("TS01", "additive finite bias -3.4028234663852886e38 on every key of rows 3 and 12 (float32)")
@pytest.mark.parametrize("name", FLOATS)
def test_a_huge_finite_bias_is_no_mask(case, name):
    x = case.recipe()
    bias = np.where(x.keep, 0.0, -3.4028234663852886e38).astype(np.float32)
    output, _ = attend(x.q, x.k, x.v, name, mask=bias, scale=x.scale)
    assert np.isfinite(output).all()
    np.testing.assert_allclose(output[3, :4], case.expected["out_3_0to3"], atol=1e-5)


@hostile("TS02")
@pytest.mark.parametrize("name", EVERY)
def test_leading_tiles_fully_masked(case, name):
    x, expected = case.recipe(), case.expected
    output, lse = attend(x.q, x.k, x.v, name, mask=x.keep, scale=x.scale)
    tolerance = 2e-5 if name in FLOATS else 5e-2 if "bfloat" in name else 5e-3
    assert not np.isnan(output).any()
    for row in (0, 7):
        np.testing.assert_allclose(output[row, :4], expected[f"out_{row}_0to3"], atol=tolerance)
        assert lse[row] == pytest.approx(expected[f"lse_{row}"], abs=tolerance)
    first, first_lse = attend(x.q, x.k[:512], x.v[:512], name, mask=x.keep[:, :512], scale=x.scale)
    assert not first.any()
    assert np.isneginf(first_lse).all()


@hostile("TS04", "a: valid -20000, other key masked", "c: half, valid -65504, other key masked")
@pytest.mark.parametrize("kv_tile", [1, 512])
def test_a_masked_key_never_beats_a_live_one(case, kv_tile):
    x = case.recipe()
    which = case.name[0]
    scores, v, keep = (getattr(x, letter + which) for letter in "svk")
    for name in FLOATS if which == "a" else (*FLOATS, *HALVES):
        output, lse = explicit(scores, v, name, kv_tile=kv_tile, keep=keep)
        assert output == case.expected["out"]
        assert lse == case.expected.get("lse", -65504.0)


@hostile("TS04", "b: 51 live scores in [-60050,-60000]")
@pytest.mark.parametrize("kv_tile", [1, 16, 512])
@pytest.mark.parametrize("name", FLOATS)
def test_live_scores_below_any_sentinel(case, kv_tile, name):
    x = case.recipe()
    output, lse = explicit(x.sb, x.vb, name, kv_tile=kv_tile)
    assert output == pytest.approx(case.expected["out"], rel=1e-6)
    assert lse == pytest.approx(case.expected["lse"], rel=1e-6)


class TestNotANumber:
    """TS06, under every policy, and by the reference."""

    @staticmethod
    def runs(x, **options):
        for name in EVERY:
            yield attend(x.q, x.k, x.v, name, **options)[0]
        tensors = (t[None, None] for t in (x.q, x.k, x.v))
        yield ts.attention_reference(*tensors, **({"mask": "full"} | options))[0, 0]

    @hostile(
        "TS06", "q[2,0]=NaN, no mask", "k[1020,0]=NaN, causal bottom-right (Sq=8,Skv=1024)",
        "v[5,3]=NaN, no mask",
    )  # fmt: skip
    def test_live_nan_reaches_its_rows_and_no_others(self, case):
        x = case.recipe()
        tensor, place = case.name.split("=")[0].split("[")
        getattr(x, tensor)[tuple(int(i) for i in place.rstrip("]").split(","))] = np.nan
        for output in self.runs(x, mask="causal" if "causal" in case.name else "full"):
            nan = np.isnan(output)
            assert nan.sum() == case.expected["nan_count"]
            if "nan_rows" in case.expected:
                assert nan.all(axis=1).nonzero()[0].tolist() == case.expected["nan_rows"]
            else:
                assert nan.all(axis=0).nonzero()[0].tolist() == case.expected["nan_columns"]

    @hostile("TS06", "one score = +inf in row 0 (k[7]=+inf*sign(q[0]) style, or explicit score)")
    def test_an_infinite_score_makes_its_row_nan(self, case):
        x = case.recipe()
        x.k[7] = np.inf * np.sign(x.q[0])
        for output in self.runs(x):
            assert np.isnan(output[0]).all()

    @hostile("TS06", "metric: ref=[1,2,3], got=[1,NaN,3]; ref=[NaN,1], got=[0,1]; ref=[NaN,1], got=[NaN,1]")
    def test_the_metric_does_not_swallow_it(self, case):
        first = error_stats([1.0, np.nan, 3.0], [1.0, 2.0, 3.0])
        second = error_stats([0.0, 1.0], [np.nan, 1.0])
        assert np.isnan([first.max_abs, second.max_abs]).all()
        assert first.nan_count == 1
        assert error_stats([np.nan, 1.0], [np.nan, 1.0]).max_abs == 0


@hostile("TS08")
@pytest.mark.parametrize("kv_tile", [1, 2, 512])
@pytest.mark.parametrize("name", FLOATS)
def test_attention_sinks(case, kv_tile, name):
    x, expected = case.recipe(), case.expected
    sink = {"no sink": None, "all keys masked, sink=0.5": 0.5}.get(case.name, 0.0)
    if case.name.startswith("sink="):
        sink = float(case.name.removeprefix("sink="))
        assert sink in x.sinks
    options = {} if sink is None else {"sinks": [sink]}
    if "masked" in case.name:
        options["keep"] = np.zeros((1, 3), bool)
    output, lse = explicit(x.x[None], x.v, name, kv_tile=kv_tile, **options)
    # 7.8e-41 is no normal number of float32.
    assert output == pytest.approx(expected["out"], rel=1e-6, abs=2.0**-126)
    if "lse" in expected:
        assert lse == pytest.approx(expected["lse"], rel=1e-6)


@hostile("TS09", "heads [0,1,2]")
@pytest.mark.parametrize("name", EVERY)
def test_nothing_is_left_over_from_the_head_before(case, name):
    x = case.recipe()
    output, _ = attend(x.q, x.k, x.v, name, mask=x.keep[None])
    assert not output[1].any()
    if name in FLOATS:
        np.testing.assert_allclose(output[2, 0, :4], case.expected["head2_0_0to3"], atol=2e-5)
    alone, _ = attend(x.q[2], x.k[2], x.v[2], name)
    np.testing.assert_array_equal(output[2], alone)
    for order in ([1, 0, 2], [2, 1, 0], [0, 2, 1]):
        other, _ = attend(x.q[order], x.k[order], x.v[order], name, mask=x.keep[None, order])
        np.testing.assert_array_equal(other, output[order])


@hostile("TS09", "Sq=24 (three row tiles of the same head)")
@pytest.mark.parametrize("name", EVERY)
def test_row_tiles_do_not_depend_on_each_other(case, name):
    x = case.recipe()
    q = x.q.reshape(24, 16)
    whole, _ = attend(q, x.k[0], x.v[0], name)
    for top in (0, 8, 16):
        np.testing.assert_array_equal(attend(q[top : top + 8], x.k[0], x.v[0], name)[0], whole[top : top + 8])


@hostile("TS10", "a: raw dot 131072 > 65504, scaled 11585.24")
def test_raw_products_beyond_half(case):
    x = case.recipe()
    assert 32.0 * 32.0 * 128 * x.scale == pytest.approx(case.expected["scaled_score"])
    for name in FLOATS:
        output, _ = attend(x.q, x.k, x.v, name, scale=x.scale)
        np.testing.assert_allclose(output[0].astype(float), case.expected["out_0"], atol=2e-3)
    for name in HALVES:
        r = ts.simulate(*(t[None, None] for t in (x.q, x.k, x.v)), mask="full", precision=name, compare=())
        assert f"{name}: scores or running sum overflow in 8 of 8 rows" in r.warnings
        assert r.errors[name].nan_count == r.errors[name].count


@hostile("TS10", "b: true weights")
def test_scores_that_half_cannot_tell_apart(case):
    x = case.recipe()
    for name in FLOATS:
        assert explicit(x.s, x.vb, name)[0] == pytest.approx(case.expected["out"], abs=1e-6)
        assert simulate(x.s, x.vb, name).errors[name].max_abs < 1e-5
    for name in HALVES:
        r = simulate(x.s, x.vb, name)
        assert r.output == case.expected["out_if_scores_rounded_to_half"]
        assert r.errors[name].max_abs == pytest.approx(case.expected["abs_error_half"], abs=1e-6)


@hostile("TS12")
def test_a_half_running_sum_overflows(case):
    n, expected = case.params["N"], case.expected
    x = case.recipe()
    scores, v = x.scores[:1, :1].repeat(n, axis=1), x.v[:1].repeat(n, axis=0)
    for name in FLOATS:
        output, lse = explicit(scores, v, name, kv_tile=x.tile_n)
        np.testing.assert_allclose(output, expected["out_float_state"], rtol=1e-5)
        assert lse == pytest.approx(expected["lse_float"], rel=1e-6)
    assert state(scores, v, "half-data-float-state")[1] == expected["l_float_state"]
    assert state(scores, v, "half-data-half-state")[1] == float(expected["l_half_state"])
    assert simulate(scores, v, "float").warnings == ()
    half = simulate(scores, v, "half-data-half-state")
    note = "half-data-half-state: scores or running sum overflow in 1 of 1 rows"
    assert (note in half.warnings) == expected["half_overflow"]
    # With a float state the sum is right, but the accumulator and the last division are half all the same.
    mixed = simulate(scores, v, "half-data-float-state")
    if expected["half_overflow"]:
        assert any("16 of 16 outputs are" in warning for warning in mixed.warnings)
    else:
        np.testing.assert_allclose(mixed.output, 1.0, rtol=1e-3)


@hostile("TS13", "float state", "half state, one rounding per tile")
def test_a_half_running_sum_stands_still(case):
    x, expected = case.recipe(), case.expected
    if case.name == "float state":
        for name in FLOATS:
            assert state(x.s, x.v, name)[1] == pytest.approx(expected["l"], rel=1e-5)
            assert explicit(x.s, x.v, name)[0] == pytest.approx(expected["out"], rel=1e-5)
        assert state(x.s, x.v, "half-data-float-state")[1] == pytest.approx(expected["l"], rel=1e-5)
        return
    half = "half-data-half-state"
    total = state(x.s, x.v, half)[1]
    exact = hostile_expected("TS13", "float state")
    assert total == expected["l"]
    assert 1 - total / exact["l"] == pytest.approx(1 - 1 / (1 + expected["l_relative_error"]), rel=0.03)
    # The accumulator is half as well, and rounds 56 times.
    assert simulate(x.s, x.v, half).errors[half].max_abs == pytest.approx(6.6e-4, rel=0.2)


@hostile("TS13", "N=4096 equal scores, 8 tiles of 512")
@pytest.mark.parametrize("name", EVERY)
def test_sums_grow_tile_by_tile_not_one_by_one(case, name):
    assert state(np.zeros((1, 4096)), np.ones((4096, 1)), name)[1] == case.expected["l_half_state"]


@hostile("TS14")
@pytest.mark.parametrize("name", EVERY)
def test_row_sums_do_not_depend_on_the_layout(case, name):
    x = case.recipe()
    p = x.pc if case.name.startswith("ones") else x.p2
    with np.errstate(divide="ignore"):
        scores = np.log(p.astype(np.float64)).astype(np.float32)
    v = np.ones((4096, 1))
    wide = np.zeros((8, 2 * 4096), np.float32)
    wide[:, ::2] = scores
    layouts = [scores, np.asfortranarray(scores), np.ascontiguousarray(scores.T).T, wide[:, ::2]]
    states = [state(layout, v, name, kv_tile=4096) for layout in layouts]
    for row_max, row_sum in states[1:]:
        np.testing.assert_array_equal(row_max, states[0][0])
        np.testing.assert_array_equal(row_sum, states[0][1])
    sums = np.exp(states[0][0].astype(np.float64)) * states[0][1]
    if case.name.startswith("ones"):
        np.testing.assert_array_equal(sums, case.expected["row_sum"])
    else:
        rtol = 1e-6 if name in FLOATS else 1e-2 if "bfloat" in name else 1e-3
        np.testing.assert_allclose(sums[0], case.expected["row_sum_0"], rtol=rtol)
        np.testing.assert_allclose(sums[7], case.expected["row_sum_7"], rtol=rtol)


@hostile("TS15", *(f"jump of {jump} between two tiles" for jump in (10, 16, 17, 18, 200)))
def test_rescale_factors_underflow(case):
    x, expected = case.recipe(), case.expected
    scores, v = x.two_tiles(**case.params)
    for name in FLOATS:
        output, _ = explicit(scores, v, name)
        if case.params["J"] <= 80:
            assert output == pytest.approx(expected["out"], rel=1e-5)
        else:
            assert output == 0
    for name in HALVES:
        output, _ = explicit(scores, v, name)
        assert abs(output - expected["out_with_half_exp_max"]) <= 3e-8
        assert not np.isnan(output)


@hostile("TS15", "staircase, 64 tiles")
def test_a_maximum_that_grows_in_every_tile(case):
    x, expected = case.recipe(), case.expected
    for name in FLOATS:
        assert explicit(x.stairs, x.vs, name)[0] == pytest.approx(expected["out"], rel=1e-5)
        assert state(x.stairs, x.vs, name)[1] == pytest.approx(expected["l"], rel=1e-5)
    for name in HALVES:
        assert explicit(x.stairs, x.vs, name)[0] == pytest.approx(expected["out"], abs=1e-3)
        assert state(x.stairs, x.vs, name)[1] == pytest.approx(expected["l"], rel=64 * 2.0**-11)


@hostile("TS17")
def test_weights_among_the_subnormal_halves(case):
    x, expected = case.recipe(), case.expected
    if case.name == "P in float":
        for name in FLOATS:
            assert explicit(x.s, x.v, name)[0] == pytest.approx(expected["out"], rel=1e-4)
    elif case.name.startswith("P in half"):
        for name in HALVES:
            assert explicit(x.s, x.v, name, kv_tile=16384)[0] == pytest.approx(expected["out"], rel=1e-3)
    else:
        keep, values = np.ones((1, 16384), bool), x.v * 0.0
        keep[0, 5], values[5] = False, 65504.0
        for name in EVERY:
            assert explicit(x.s, values, name, keep=keep)[0] == 0

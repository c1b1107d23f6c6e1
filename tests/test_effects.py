"""Causes of errors: the switchable model against reference, kernel model and cases with one known cause."""

import json

import numpy as np
import pytest
from hostile import CASES, stated
from hypothesis import HealthCheck, assume, given, settings
from strategies import variant_problems
from tile_model import attention_head, narrow

import tilesim as ts
from tilesim.effects import EFFECTS, _Sample, find_effects
from tilesim.problem import read_problem

HALF = ts.PRECISIONS["half-data-half-state"]


def read(tensors, mask="full", window=None, scale=1.0, **options):
    return read_problem(*tensors, mask=mask, window=window, scale=scale, options=options)


def effects(scores, v, policy=HALF, **tile):
    tensors, options = stated(scores, v)
    return find_effects(read(tensors, **options), ts.Tile(**tile), policy)


def recipe(identifier):
    names = {"np": np}
    exec(CASES[identifier]["input_recipe"], names)
    return names


@pytest.mark.parametrize("name", ["half-data-half-state", "bfloat16-data-float-state"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(problem=variant_problems(max_seq_q=8, least=1))
def test_all_points_are_the_kernel_and_none_is_the_reference(name, problem):
    policy, place = ts.PRECISIONS[name], (problem.q.shape[0] - 1, problem.q.shape[1] - 1)
    sample = _Sample(read(problem.tensors, **problem.arguments), *place, problem.tile, policy)
    with np.errstate(all="ignore"):
        exact, rounded = sample.run(frozenset()), sample.run(frozenset(EFFECTS))
    reference = ts.attention_reference(*problem.tensors, **problem.arguments)[place]
    size = max(1.0, float(np.abs(problem.v.astype(np.float64)).max()))
    np.testing.assert_allclose(exact, reference, rtol=1e-12, atol=1e-12 * size)
    one = problem.head(*place)
    q, k, v = (narrow(x, policy.data.name) for x in (one.q, one.k, one.v))
    output, _ = attention_head(
        q, k, v, visible=one.visible, scale=one.scale, data=policy.data.name, state=policy.state.name,
        kv_tile=min(problem.kv_tile, len(k)), splits=problem.kv_splits, variant=one,
    )  # fmt: skip
    assume(np.isfinite(output).all())
    # Sums are float64 here and float32 there, and ties go the other way: a score may land on its neighbour.
    np.testing.assert_allclose(rounded, output, atol=32 * policy.data.eps * size)


def test_sampled_errors_are_those_of_the_kernel():
    from tilesim.samples import load_sample

    for name in ("half-data-float-state", "half-data-half-state"):
        r = ts.simulate(*load_sample(), precision=name, compare=())
        found = r.effects[name]
        total = np.sqrt(sum(error**2 for error in found.rms.values()))
        assert total == pytest.approx(r.errors[name].rms, rel=0.3)
        assert found.rows == 64
        document = json.loads(json.dumps(r.to_dict(), allow_nan=False))
        assert document["effects"][name]["dominant"] == found.dominant == "scores"


def test_a_running_sum_that_stands_still():
    names = recipe("TS13")
    found = effects(names["s"], names["v"])
    assert found.dominant == "state"
    assert (found.updates, found.stalled_sums) == (63, 56)
    assert found.rms["state"] == pytest.approx(6.56e-4, rel=0.01)
    assert "56 of 63 updates left the running sum unchanged" in found.describe()
    float_state = effects(names["s"], names["v"], ts.PRECISIONS["half-data-float-state"])
    assert float_state.stalled_sums == 0
    assert float_state.rms["state"] < 1e-7


@pytest.mark.parametrize(("jump", "lost"), [(17, 0), (18, 1)])
def test_a_rescale_factor_that_underflows(jump, lost):
    scores, v = recipe("TS15")["two_tiles"](jump)
    found = effects(scores, v * 1000.0)
    assert found.underflowed_exp_max == lost
    assert found.rms["exp_max"] == pytest.approx(
        1000 * abs(np.exp(-jump) - float(np.float16(np.exp(-jump)))), rel=0.01
    )


def test_probabilities_among_the_subnormals():
    names = recipe("TS17")
    found = effects(names["s"], names["v"], kv_tile=16384)
    assert found.dominant == "probabilities"
    assert found.rms["probabilities"] == pytest.approx(0.00498660684928 - 0.00485879135763, rel=0.01)
    lower = effects(names["s"] - np.float16(3) * (names["s"] != 0), names["v"], kv_tile=16384)
    assert lower.underflowed_probabilities == 16383


def test_scores_that_half_cannot_tell_apart():
    q = np.array([2.0, 1.0]).reshape(1, 1, 1, 2)
    k = np.array([[5792.0, 1.0], [5792.0, 4.0]]).reshape(1, 1, 2, 2)
    found = find_effects(read((q, k, np.array([0.0, 1.0]).reshape(1, 1, 2, 1))), ts.Tile(), HALF)
    assert found.dominant == "scores"
    assert found.rms["inputs"] == 0
    # 11,585 and 11,588 become 11,584 and 11,584 or 11,592: a gap of 3 is 0 or 8.
    assert found.rms["scores"] == pytest.approx(0.9526 - 0.5, abs=1e-3)


def test_an_accumulator_over_many_tiles():
    rng = np.random.default_rng(5)
    scores = np.zeros((4, 4096))
    found = effects(scores, 1 + rng.random((4096, 8)).astype(np.float16).astype(float) / 16, kv_tile=16)
    assert found.dominant == "accumulator"


def test_what_overflows_is_named():
    found = effects(np.zeros((1, 65536)), np.full((65536, 1), 0.5), kv_tile=8192)
    assert found.dominant == "state"
    assert found.rms["state"] == 0.5
    assert "1 rows had infinite scores or sums" in found.describe()
    found = effects(np.zeros((1, 1024)), np.full((1024, 1), 100.0))
    assert (found.dominant, found.overflowed_rows) == ("accumulator", 0)
    assert "it overflows" in found.describe()
    assert found.to_dict()["rms"]["accumulator"] is None


def test_nothing_to_say():
    one = np.ones((1, 1, 3, 4), np.float32)
    assert find_effects(read((one, one, one)), ts.Tile(), ts.PRECISIONS["float"]) is None
    assert find_effects(read((one, one * np.nan, one)), ts.Tile(), HALF) is None
    assert find_effects(read((one[:, :, :0], one, one)), ts.Tile(), HALF) is None
    assert find_effects(read((one, one[:, :, :0], one[:, :, :0])), ts.Tile(), HALF) is None
    assert find_effects(read((one[:0], one[:0], one[:0])), ts.Tile(), HALF) is None
    equal = find_effects(read((one, one, one)), ts.Tile(), HALF)
    assert equal.dominant is None
    assert equal.describe() == "no rounding point makes an error"


def test_error_stats_carry_what_was_seen_on_the_way():
    """A sum of 4,096 in half takes none of the 56 tiles that add 1.9 each."""
    scores = np.concatenate([np.zeros(8 * 512), np.full(56 * 512, -5.5964)]).astype(np.float16)
    q, k = np.ones((1, 1, 1, 1), np.float16), scores[None, None, :, None]
    v = (scores != 0).astype(np.float16)[None, None, :, None]
    result = ts.simulate(
        q, k, v, mask="full", scale=1.0, precision="half-data-half-state", compare=("float",)
    )
    stats = result.errors["half-data-half-state"]
    assert (stats.stalled_sums, stats.underflowed_exp_max, stats.dominant_effect) == (56, 0, "state")
    assert stats.to_dict()["dominant_effect"] == "state"
    assert result.errors["float"].stalled_sums is None

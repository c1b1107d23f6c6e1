"""A launch inside its planned memory: right numbers, and never more bytes than projected."""

import dataclasses

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import problems

import tilesim as ts
from tilesim.dtypes import FLOAT
from tilesim.memory import Layout, measure_memory
from tilesim.samples import load_sample

EXACT = ("half-data-float-state", "half-data-half-state", "bfloat16-data-float-state")
LAYOUTS = st.builds(
    Layout,
    score_buffers=st.integers(1, 3),
    mask_buffers=st.integers(0, 2),
    probability_buffers=st.integers(1, 2),
    partial_buffers=st.integers(1, 2),
    state_mode=st.sampled_from(["NORMAL", "WITHOUT_BRC"]),
    temporary=st.sampled_from(["minimum", "maximum"]),
    shared_temporary=st.booleans(),
    base_rows=st.sampled_from([16, 32, 128]),
    base_columns=st.sampled_from([16, 128]),
    base_depth_bytes=st.sampled_from([64, 256]),
    l1_buffers=st.integers(1, 2),
    l0_buffers=st.integers(1, 2),
)


def tiles(kv_tile):
    return st.builds(
        ts.Tile,
        softmax_rows=st.sampled_from([1, 3, 8, 16]),
        kv_tile=st.just(kv_tile),
        query_rows=st.one_of(st.none(), st.integers(1, 40)),
        slots=st.integers(1, 3),
    )


@pytest.mark.parametrize("policy", ts.PRECISIONS)
@settings(max_examples=25, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), problem=problems(max_seq_q=30, max_seq_kv=70, max_dim=20, batches=1))
def test_measured_never_exceeds_projected_and_numbers_are_those_of_the_kernel(policy, data, problem):
    tile, layout = data.draw(tiles(problem.kv_tile)), data.draw(LAYOUTS)
    options = {
        "tile": tile,
        "precision": policy,
        "mask": problem.mask,
        "window": problem.window,
        "scale": problem.scale,
    }
    q, k, v = problem.q, problem.k, problem.v
    got = measure_memory(q, k, v, **options, layout=layout, allow_over_budget=True, poison=True)
    for name, measured in got.measured_bytes.items():
        assert 0 < measured <= got.projected_bytes[name] <= got.budget.memories[name].used_bytes
    output, lse = ts.attention(q, k, v, **options, return_lse=True)
    if policy in EXACT:
        # Both in float32: bfloat16 output is exact there, float32 output holds the rounded values.
        np.testing.assert_array_equal(got.output.astype(np.float32), output)
        np.testing.assert_array_equal(got.lse, lse)
    else:
        size = np.abs(v).max()
        np.testing.assert_allclose(got.output, output, rtol=1e-4, atol=1e-5 * size)
        np.testing.assert_allclose(got.lse, lse, rtol=1e-4, atol=1e-4)


def test_whole_tiles_are_measured_to_the_byte():
    q, k, v = (x[:, :1, :600] for x in load_sample())
    got = measure_memory(q, k, v, tile=ts.Tile(query_rows=256), poison=True)
    plan = got.budget
    # Accumulator, state and one group at its softmax: the fullest moment of the reference kernel.
    by_hand = 128 * 64 * 2 + 2 * 128 * 32 + 2 * 128 * 32 + 2 * 8 * 512 * 2 + 18688
    assert got.measured_bytes["UB"] == plan.peak_bytes == by_hand
    assert got.measured_bytes["GM"] == plan.memories["GM"].used_bytes
    np.testing.assert_array_equal(got.output, ts.attention(q, k, v))


def test_values_that_are_not_finite_stay_in_their_rows():
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 1, 40, 8)).astype(np.float16) for _ in range(3))
    k[0, 0, 30], v[0, 0, 20] = np.nan, np.inf
    tile = ts.Tile(kv_tile=16)
    got = measure_memory(q, k, v, tile=tile, poison=True)
    np.testing.assert_array_equal(got.output, ts.attention(q, k, v, tile=tile))
    assert np.isfinite(got.output[0, 0, :20]).all()


def test_what_does_not_fit_is_not_run_unless_asked():
    x = np.ones((1, 1, 2048, 4), np.float16)
    tile = ts.Tile(kv_tile=2048, softmax_rows=32)
    with pytest.raises(ts.BudgetError, match="UB does not fit"):
        measure_memory(x[:, :, :8], x, x, tile=tile, mask="full")
    got = measure_memory(x[:, :, :8], x, x, tile=tile, mask="full", allow_over_budget=True)
    np.testing.assert_array_equal(got.output, 1.0)


def test_types_of_single_tensors_are_refused():
    x = np.ones((1, 1, 8, 4), np.float16)
    layout = dataclasses.replace(Layout(), score_dtype=FLOAT)
    with pytest.raises(ts.TilesimError, match=r"score_dtype.*policy"):
        measure_memory(x, x, x, layout=layout)


@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(
    data=st.data(),
    problem=problems(max_seq_q=30, max_seq_kv=70, max_dim=20),
    align=st.sampled_from(["bottom-right", "top-left"]),
)
def test_alignment_and_lengths_are_those_of_the_kernel(data, problem, align):
    batch, seq_kv = problem.q.shape[0], problem.k.shape[2]
    options = {
        "tile": data.draw(tiles(problem.kv_tile)),
        "mask": problem.mask,
        "window": problem.window,
        "scale": problem.scale,
        "align": align,
        "key_lengths": data.draw(st.none() | st.tuples(*[st.integers(0, seq_kv)] * batch)),
    }
    q, k, v = problem.q, problem.k, problem.v
    got = measure_memory(q, k, v, **options, allow_over_budget=True, poison=True)
    output, lse = ts.attention(q, k, v, **options, return_lse=True)
    np.testing.assert_array_equal(got.output.astype(np.float32), output)
    np.testing.assert_array_equal(got.lse, lse)
    for name, measured in got.measured_bytes.items():
        assert measured <= got.projected_bytes[name]


@pytest.mark.parametrize(
    ("options", "name"),
    [
        ({"attn_mask": np.ones((8, 8), bool)}, "attn_mask"),
        ({"softcap": 3.0}, "softcap"),
        ({"alibi_slopes": np.ones(1)}, "alibi"),
        ({"sinks": np.ones(1)}, "sinks"),
        ({"tile": ts.Tile(kv_splits=2)}, "kv_splits"),
    ],
)
def test_what_is_planned_only_is_refused_in_one_line(options, name):
    x = np.ones((1, 1, 8, 4), np.float16)
    with pytest.raises(ts.ConfigError, match=f"^{name}: got .*measured") as error:
        measure_memory(x, x, x, **options)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("shape", [(0, 1, 8, 4), (1, 1, 0, 4), (1, 1, 8, 0)])
def test_empty_tensors_hold_nothing_but_the_workspace(shape):
    x = np.ones(shape, np.float16)
    got = measure_memory(x, x, x, scale=1.0, poison=True)
    assert got.output.shape == shape

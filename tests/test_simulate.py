"""One simulation end to end: what it measures, what it reports, what it refuses."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from strategies import problems

import tilesim as ts


@pytest.fixture
def tensors(rng):
    return [rng.standard_normal((1, 2, 100, 32)).astype(np.float16) for _ in range(3)]


def test_result_holds_what_was_asked_for(tensors):
    r = ts.simulate(*tensors, tile=ts.Tile(kv_tile=64), compare=("half-data-half-state", "float"))
    assert r.workload == ts.Workload(batch=1, heads=2, seq_q=100, head_dim=32)
    assert r.tile == ts.Tile(kv_tile=64, query_rows=100)
    assert r.precision is ts.PRECISIONS["half-data-float-state"]
    assert r.platform.name == "ascend910b4"
    assert r.scale == pytest.approx(32**-0.5)
    assert list(r.errors) == ["half-data-float-state", "half-data-half-state", "float"]
    assert (
        r.budget.used_bytes == ts.budget(r.workload, ts.Tile(kv_tile=64), r.precision, r.platform).used_bytes
    )
    assert r.device.time_us == ts.estimate(r.workload, r.tile, r.precision, r.platform).time_us
    assert not r.over_budget
    assert r.warnings == ()


def test_output_and_lse_are_those_of_attention(tensors):
    for policy in ts.PRECISIONS:
        r = ts.simulate(*tensors, precision=policy, compare=())
        output, lse = ts.attention(*tensors, precision=policy, return_lse=True)
        np.testing.assert_array_equal(r.output, output)
        np.testing.assert_array_equal(r.lse, lse)
        assert r.output.dtype == np.float16
        assert list(r.errors) == [policy]


def test_errors_are_measured_before_the_output_is_cast_to_the_dtype_of_q(tensors):
    r = ts.simulate(*tensors, precision="float", compare=())
    assert r.errors["float"].max_abs < 1e-5


def test_errors_against_a_reference_computed_here(tensors):
    r = ts.simulate(*tensors, mask="full")
    q, k, v = (x.astype(np.float64) for x in tensors)
    weights = np.exp(q @ k.swapaxes(2, 3) / np.sqrt(32))
    expected = weights @ v / weights.sum(axis=-1, keepdims=True)
    difference = r.output.astype(np.float64) - expected
    stats = r.errors["half-data-float-state"]
    assert stats.max_abs == pytest.approx(np.abs(difference).max(), rel=1e-9)
    assert stats.rms == pytest.approx(np.sqrt((difference**2).mean()), rel=1e-9)


@settings(max_examples=30)
@given(problem=problems())
def test_any_small_problem_runs_under_any_policy(problem):
    r = ts.simulate(
        problem.q,
        problem.k,
        problem.v,
        mask=problem.mask,
        window=problem.window,
        scale=problem.scale,
        tile=ts.Tile(kv_tile=problem.kv_tile),
        compare=[name for name in ts.PRECISIONS if name != "half-data-float-state"],
    )
    assert list(r.errors) == list(ts.PRECISIONS)
    assert all(stats.nan_count == 0 for stats in r.errors.values())
    json.dumps(r.to_dict(), allow_nan=False)


def test_throughput_counts_useful_work_only():
    x = np.ones((1, 1, 1024, 16), np.float16)
    causal, full = (ts.simulate(x, x, x, mask=mask, compare=()) for mask in ("causal", "full"))
    for r, pairs, tiles in ((causal, 524800, 192), (full, 1024 * 1024, 256)):
        t = r.throughput
        assert t.score_tiles == tiles
        assert t.gflops * t.wall_s == pytest.approx(pairs * 2 * 32 / 1e9)
        assert t.score_tiles_per_s * t.wall_s == pytest.approx(tiles)
    # Tasks of 128 rows: a causal one streams one tile of 512 keys, from row 512 on two.
    assert causal.throughput.gm_bytes == 2 * 32 * (1024 + 4 * 512 + 4 * 1024)
    assert full.throughput.gm_bytes == 2 * 32 * (1024 + 8 * 1024)


def test_compilation_is_reported_apart(tensors):
    ts.simulate(*tensors)
    assert ts.simulate(*tensors).throughput.compile_s < 0.5


class TestOverBudget:
    tile = ts.Tile(kv_tile=8192)

    def test_refused_before_anything_runs(self, tensors):
        with pytest.raises(ts.BudgetError) as error:
            ts.simulate(*tensors, tile=self.tile)
        assert not error.value.budget.fits
        assert f"{error.value.budget.used_bytes:,}" in str(error.value)
        assert "UB" in str(error.value)

    def test_runs_and_says_so_when_allowed(self, tensors):
        r = ts.simulate(*tensors, tile=self.tile, allow_over_budget=True)
        assert r.over_budget
        assert r.to_dict()["over_budget"] is True
        assert any("over budget" in warning for warning in r.warnings)
        np.testing.assert_array_equal(r.output, ts.attention(*tensors, tile=self.tile))


class TestWarnings:
    def test_nan_and_infinities_are_counted(self, tensors):
        q, k, v = tensors
        q[0, 0, 3, :2] = np.nan
        v[0, 1, 5, 0] = -np.inf
        r = ts.simulate(q, k, v)
        assert "q holds 2 NaN and 0 infinite values" in r.warnings
        assert "v holds 0 NaN and 1 infinite values" in r.warnings
        document = json.loads(json.dumps(r.to_dict()))
        assert document["warnings"] == list(r.warnings)

    def test_values_beyond_half_are_counted(self, tensors):
        k = tensors[1].astype(np.float32)
        k[0, 0, :3, 0] = (65519.0, 65520.0, -1e6)
        r = ts.simulate(tensors[0], k, tensors[2])
        assert any(w.startswith("2 values of k exceed 65504") for w in r.warnings)
        assert ts.simulate(tensors[0], k, tensors[2], precision="float", compare=()).warnings == ()


def test_progress_names_the_stages(tensors):
    stages = []
    ts.simulate(*tensors, progress=lambda stage, done, total: stages.append(stage))
    assert list(dict.fromkeys(stages)) == [
        "float64 reference",
        "half-data-float-state",
        "half-data-half-state",
    ]


def test_json_document_has_the_agreed_keys(tensors):
    document = ts.simulate(*tensors).to_dict()
    assert document["schema"] == 1
    keys = {"workload", "tile", "platform", "budget", "errors", "throughput", "device"}
    assert keys <= set(document)
    for stats in document["errors"].values():
        assert {"max_abs", "rms", "max_rel", "max_ulp_half", "cosine_distance"} <= set(stats)
    assert {"wall_s", "gflops", "score_tiles_per_s"} <= set(document["throughput"])


@pytest.mark.parametrize(
    "options",
    [
        {"precision": "halve"},
        {"platform": "ascend"},
        {"compare": ("none",)},
        {"mask": "diagonal"},
        {"scale": np.nan},
    ],
)
def test_bad_options(tensors, options):
    with pytest.raises(ts.TilesimError):
        ts.simulate(*tensors, **options)


def test_packaged_sample_loses_little_in_half():
    data = Path(ts.__file__).parent / "data"
    with np.load(next(data.glob("*.npz"))) as sample:
        r = ts.simulate(sample["q"], sample["k"], sample["v"], compare=("half-data-half-state", "float"))
    half, float_ = r.errors["half-data-float-state"], r.errors["float"]
    assert 0 < float_.rms < 1e-6 < half.rms < 1e-3
    assert half.cosine_distance < 1e-6
    assert half.nan_count == half.overflow_count == 0


def key_products(products, values):
    """Return queries, keys and values of one head whose products are those given, row by row."""
    q = np.eye(len(products), dtype=np.float32)[None, None]
    k = np.array(products, np.float32).T[None, None]
    return q, k, np.array(values, np.float32).reshape(1, 1, -1, 1)


HALF_OVERFLOW = 65520.0
"""Least size that half rounds to infinity."""


@pytest.mark.parametrize(
    ("least", "scale", "rows"),
    [
        (-HALF_OVERFLOW, 1e-5, 1),  # the product overflows, scaled it would count
        (-65519.0, 1e-5, 0),
        (-40000.0, 2.0, 1),  # the scaled score does
        (-32000.0, 2.0, 0),
        (HALF_OVERFLOW, -1e-5, 1),
    ],
)
def test_a_score_lost_to_minus_infinity_is_reported(least, scale, rows):
    tensors = key_products([[least, 0.0], [0.0, 0.0]], [5.0, 1.0])
    # A product of two halves: neither q nor k exceeds them.
    tensors[0][..., 0, 0], tensors[1][..., 0, 0] = 256.0, least / 256.0
    for precision in ("half-data-float-state", "half-data-half-state"):
        result = ts.simulate(*tensors, mask="full", scale=scale, precision=precision)
        notes = [f"{precision}: scores or running sum overflow in {rows} of 2 rows"] * min(rows, 1)
        assert [note for note in result.warnings if precision in note] == notes
        assert result.effects[precision].overflowed_rows == rows


def test_rows_that_lose_all_scores_are_reported():
    q, k, v = (np.full((1, 1, n, 64), x, np.float16) for n, x in ((1, 100.0), (4, -11.0), (4, 1.0)))
    result = ts.simulate(q, k, v, mask="full")
    assert "overflow in 1 of 1 rows" in " ".join(result.warnings)


def test_hidden_scores_are_no_overflow():
    tensors = key_products([[0.0, -1.0], [-30000.0, 0.0]], [5.0, 1.0])
    tensors[0][..., 0, 0], tensors[1][..., 1, 0] = 256.0, -300.0
    result = ts.simulate(*tensors, mask="causal", scale=1e-5)
    assert not result.warnings
    assert result.effects["half-data-float-state"].overflowed_rows == 0
    assert ts.simulate(*tensors, mask="full", scale=1e-5).warnings


def two_keys(query, keys, **options):
    q, k = np.full((1, 1, 1, 1), query), np.array(keys, float).reshape(1, 1, 2, 1)
    return ts.simulate(q, k, np.array([1.0, 2.0]).reshape(1, 1, 2, 1), scale=1.0, compare=(), **options)


@pytest.mark.parametrize(
    ("first_score", "options", "rows"),
    [
        (-60000.0, {"mask": np.array([[-30000.0, 0.0]])}, 1),  # only the sum overflows
        (-30000.0, {"mask": np.array([[-30000.0, 0.0]])}, 0),
        (
            -100000.0,
            {"mask": np.array([[-1e6, 0.0]])},
            0,
        ),  # the key is hidden, by what half makes of the mask
        (-100000.0, {"mask": "full", "softcap": 5.0}, 0),  # -5 all the same
        (-1000.0, {"mask": "full", "alibi_slopes": [65000.0]}, 1),
        (-100.0, {"mask": "full", "alibi_slopes": [60000.0]}, 0),
    ],
)
def test_overflow_behind_the_product(first_score, options, rows):
    result = two_keys(256.0, [first_score / 256.0, 0.0], **options)
    assert len(result.warnings) == rows
    assert result.effects["half-data-float-state"].overflowed_rows == rows


def test_a_scale_that_is_infinite_in_half_loses_scores():
    one, k = np.ones((1, 1, 1, 1)), np.full((1, 1, 2, 1), -1e-4)
    (note,) = ts.simulate(one, k, k + 1, mask="full", scale=70000.0, sinks=[0.0], compare=()).warnings
    assert "overflow in 1 of 1 rows" in note


def test_float_scales_its_queries_so_that_no_product_overflows():
    one, k = np.full((1, 1, 1, 1), 1e20), np.full((1, 1, 2, 1), -1e19)
    assert not ts.simulate(one, k, k, mask="full", scale=1e-38, precision="float", compare=()).warnings


@pytest.mark.filterwarnings("error")
def test_a_mask_that_half_rounds_to_infinity_warns_of_nothing():
    x, mask = np.ones((1, 1, 2, 16), np.float32), np.where(np.tri(2, dtype=bool), 0, -1e9)
    assert not ts.simulate(x, x, x, mask=mask, compare=("half-data-half-state",)).warnings

"""Variants against a dense oracle in float64: reference to the last bits, kernels within their rounding."""

import dataclasses
import functools

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from strategies import variant_problems
from tile_model import attention_head, is_basic, narrow

import tilesim as ts
from tilesim import engine, plan
from tilesim.engine import run_kernel
from tilesim.errors import InputError
from tilesim.kernels._jit import DISABLED
from tilesim.kernels.attention import attention_worker
from tilesim.kernels.vector import BLOCK
from tilesim.problem import read_problem

SLOW = settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow])


def oracle_head(one):
    """Return output and lse of one head by the textbook, row by row, with only the visible keys."""
    output, lse = np.zeros((len(one.q), one.v.shape[1])), np.full(len(one.q), one.sink)
    q, k, v = (x.astype(np.float64) for x in (one.q, one.k, one.v))
    for row in range(len(q)):
        seen = one.visible[row]
        scores = (k @ q[row])[seen] * one.scale
        if one.softcap:
            scores = one.softcap * np.tanh(scores / one.softcap)
        scores = scores - one.slope * one.distance[row, seen] + one.bias[row, seen]
        top = max([*scores, one.sink])
        if top > -np.inf:
            weights = np.exp(scores - top)
            total = weights.sum() + np.exp(one.sink - top)
            output[row], lse[row] = weights @ v[seen] / total, top + np.log(total)
    return output, lse


def oracle(problem):
    output = np.zeros((*problem.q.shape[:3], problem.v.shape[3]))
    lse = np.zeros(problem.q.shape[:3])
    for batch, head in np.ndindex(problem.q.shape[:2]):
        output[batch, head], lse[batch, head] = oracle_head(problem.head(batch, head))
    return output, lse


def attend(problem, precision, **options):
    return ts.attention(
        *problem.tensors, precision=precision, tile=problem.tile, return_lse=True,
        **problem.arguments, **options,
    )  # fmt: skip


def sizes(problem):
    """Return how large scores, sums of |q * k| and all that is added to them, and values can get."""
    q, k, v = (np.abs(x.astype(np.float64)) for x in problem.tensors)
    repeat = problem.q.shape[1] // problem.k.shape[1]
    scores = (q @ np.repeat(k, repeat, axis=1).swapaxes(2, 3)).max(initial=0.0) * abs(problem.scale)
    heads = [problem.head(*place) for place in np.ndindex(problem.q.shape[:2])]
    for one in heads:
        added = np.where(np.isneginf(one.bias), 0.0, np.abs(one.bias)) + one.slope * one.distance
        scores = max(scores, scores + added.max(initial=0.0), abs(one.sink) if np.isfinite(one.sink) else 0.0)
    return scores, v.max(initial=0.0)


@SLOW
@given(problem=variant_problems())
def test_the_reference_is_attention_by_definition(problem):
    output, lse = ts.attention_reference(*problem.tensors, return_lse=True, **problem.arguments)
    expected, expected_lse = oracle(problem)
    size = max(1.0, sizes(problem)[1])
    np.testing.assert_allclose(output, expected, rtol=1e-12, atol=1e-12 * size)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-12, atol=1e-12)


@SLOW
@given(problem=variant_problems())
def test_float_policies_stay_within_the_rounding_of_binary32(problem):
    expected, expected_lse = oracle(problem)
    scores, value = sizes(problem)
    depth, keys = problem.q.shape[3], problem.k.shape[2]
    relative = 2.0**-24 * (4 * (depth + 8) * scores + 4 * keys + 24)
    for name in ("float", "float-data-float-state"):
        output, lse = attend(problem, name)
        out_eps = 0.0 if problem.q.dtype in (np.float32, np.float64) else float(np.finfo(np.float32).eps)
        if problem.q.dtype.itemsize == 2:
            out_eps = 2.0**-11 if problem.q.dtype == np.float16 else 2.0**-8
        assert np.abs(output.astype(np.float64) - expected).max(initial=0.0) <= (
            relative * value + out_eps * np.abs(expected).max(initial=0.0) + 2.0**-24
        )
        finite = np.isfinite(expected_lse)
        assert (np.isneginf(lse) == ~finite).all()
        wrong = np.abs(lse[finite] - expected_lse[finite])
        assert (wrong <= relative + 2.0**-22 * np.abs(expected_lse[finite])).all()


@SLOW
@given(problem=variant_problems())
def test_narrow_policies_stay_within_their_own_rounding(problem):
    expected, _ = oracle(problem)
    scores, value = sizes(problem)
    tiles = -(-problem.k.shape[2] // problem.kv_tile)
    for name in ("half-data-float-state", "half-data-half-state", "bfloat16-data-float-state"):
        eps = ts.PRECISIONS[name].data.eps / 2
        out_eps = 2.0**-8 if problem.q.dtype.itemsize == 2 else 0.0
        # Queries, keys and each step on a score are rounded; weights, partial sums and accumulators, too.
        bound = np.expm1(min(2 * 10 * eps * scores + eps * (4 * tiles + 8), 50.0)) + out_eps
        output, _ = attend(problem, name)
        error = np.abs(output.astype(np.float64) - expected).max(initial=0.0)
        assert error <= bound * value + 2.0**-20


def stated(problem):
    options = {"mask": "full", "window": None, **problem.options}
    return read_problem(
        *problem.tensors,
        scale=problem.scale,
        mask=options.pop("mask"),
        window=options.pop("window"),
        options=options,
    )


@pytest.mark.parametrize("name", [name for name in ts.PRECISIONS if name != "float"])
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(problem=variant_problems(max_seq_q=10, max_seq_kv=90, least=1))
def test_every_rounding_point_bit_by_bit(name, problem):
    policy = ts.PRECISIONS[name]
    got = run_kernel(stated(problem), tile=problem.tile, policy=policy)
    place = problem.q.shape[0] - 1, problem.q.shape[1] - 1
    one = problem.head(*place)
    q, k, v = (narrow(x, policy.data.name) for x in (one.q, one.k, one.v))
    output, states = attention_head(
        q, k, v, visible=one.visible, scale=one.scale, data=policy.data.name, state=policy.state.name,
        kv_tile=min(problem.kv_tile, len(k)), splits=problem.kv_splits,
        basic=is_basic(problem.kv_tile, policy), fused=BLOCK.fused, variant=one,
    )  # fmt: skip
    np.testing.assert_array_equal(got.output[place], output)
    np.testing.assert_array_equal(got.row_max[place], states[:, 0])
    np.testing.assert_array_equal(got.row_sum[place], states[:, 1])


@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(problem=variant_problems(least=1))
def test_the_number_of_threads_changes_no_bit(problem):
    for name in ("float", "half-data-half-state"):
        policy = ts.PRECISIONS[name]
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(plan, "SMALL_FLOPS", 0)
            patch.setattr(engine, "plan_for", plan.plan_for.__wrapped__)
            runs = [
                run_kernel(stated(problem), tile=problem.tile, policy=policy, threads=threads)
                for threads in (1, 2, 5)
            ]
        assert runs[2].threads == 5
        for run in runs[1:]:
            assert run.output.tobytes() == runs[0].output.tobytes()
            assert run.lse.tobytes() == runs[0].lse.tobytes()


@pytest.mark.parametrize("name", list(ts.PRECISIONS))
@settings(max_examples=60, suppress_health_check=[HealthCheck.too_slow])
@given(problem=variant_problems(least=1), data=st.data())
def test_what_a_row_does_not_see_changes_no_bit_of_it(name, problem, data):
    """NaN and infinities of a key make rows that see it NaN or infinite; others stay as they are."""
    batch = data.draw(st.integers(0, problem.q.shape[0] - 1))
    kv_head = data.draw(st.integers(0, problem.k.shape[1] - 1))
    key = data.draw(st.integers(0, problem.k.shape[2] - 1))
    tensor = data.draw(st.sampled_from(["k", "v"]))
    bad = data.draw(st.sampled_from([np.nan, np.inf, -np.inf]))
    spoiled = dataclasses.replace(problem, **{tensor: getattr(problem, tensor).copy()})
    getattr(spoiled, tensor)[batch, kv_head, key, 0] = bad
    seeing = np.zeros(problem.q.shape[:3], bool)
    group = problem.q.shape[1] // problem.k.shape[1]
    for head in range(kv_head * group, (kv_head + 1) * group):
        seeing[batch, head] = problem.head(batch, head).visible[:, key]
    # The reference leaves the order of sums to BLAS.
    for run, tolerance in ((lambda p: attend(p, name), 0.0), (reference, 1e-13)):
        (output, lse), (clean, clean_lse) = run(spoiled), run(problem)
        same = functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance)
        same(output[~seeing].astype(float), clean[~seeing].astype(float))
        same(lse[~seeing], clean_lse[~seeing])
        if tensor == "v":
            assert not np.isfinite(output[seeing][:, 0]).any()
            same(output[seeing][:, 1:].astype(float), clean[seeing][:, 1:].astype(float))
            same(lse, clean_lse)
        elif np.isnan(bad):
            assert np.isnan(output[seeing]).all()
            assert np.isnan(lse[seeing]).all()


def reference(problem):
    return ts.attention_reference(*problem.tensors, return_lse=True, **problem.arguments)


@pytest.mark.parametrize("name", list(ts.PRECISIONS))
@settings(max_examples=30, suppress_health_check=[HealthCheck.too_slow])
@given(problem=variant_problems(least=1), data=st.data())
def test_a_query_that_is_no_number_spoils_its_row_only(name, problem, data):
    place = tuple(data.draw(st.integers(0, size - 1)) for size in problem.q.shape[:3])
    spoiled = dataclasses.replace(problem, q=problem.q.copy())
    spoiled.q[place][0] = np.nan
    sees = problem.head(*place[:2]).visible[place[2]].any()
    for run in (lambda p: attend(p, name), reference):
        (output, lse), (clean, clean_lse) = run(spoiled), run(problem)
        if sees:
            assert np.isnan(output[place]).all()
            assert np.isnan(lse[place])
            output[place], lse[place] = clean[place], clean_lse[place]
        np.testing.assert_allclose(output.astype(float), clean.astype(float), rtol=1e-13)
        np.testing.assert_allclose(lse, clean_lse, rtol=1e-13)


@pytest.mark.parametrize("name", list(ts.PRECISIONS))
def test_hidden_tiles_then_visible_ones_and_rows_without_keys(name, rng):
    q, k, v = (rng.standard_normal((1, 2, n, 16)).astype(np.float32) for n in (20, 300, 300))
    keep = np.ones((20, 300), bool)
    keep[:, :64], keep[:7, :200], keep[[3, 19]] = False, False, False
    k[0, 0, 5], v[0, 1, 63] = np.nan, np.inf
    expected, expected_lse = ts.attention_reference(q, k, v, mask=keep, return_lse=True)
    rounding = 8 * ts.PRECISIONS[name].data.eps
    for mask in (keep, np.where(keep, 0.0, -np.inf)):
        for kv_tile in (16, 64, 512):
            output, lse = ts.attention(
                q, k, v, mask=mask, precision=name, tile=ts.Tile(kv_tile=kv_tile), return_lse=True
            )
            assert not output[0, :, [3, 19]].any()
            assert np.isneginf(lse[0, :, [3, 19]]).all()
            np.testing.assert_allclose(output, expected, atol=rounding + 2e-5)
            np.testing.assert_allclose(lse, expected_lse, atol=rounding + 2e-5)


@pytest.mark.parametrize("score", [0.0, 1e4, -1e4])
@pytest.mark.parametrize("name", list(ts.PRECISIONS))
def test_equal_scores_of_any_size_average_the_values(name, score, rng):
    q = np.ones((1, 1, 9, 1), np.float32)
    k = np.full((1, 1, 200, 1), score, np.float32)
    v = rng.integers(-8, 8, (1, 1, 200, 4)).astype(np.float32)
    keep = rng.random((9, 200)) < 0.5
    keep[:, 0] = True
    output, lse = ts.attention(q, k, v, mask=keep, scale=1.0, precision=name, return_lse=True)
    mean = np.stack([v[0, 0, row].mean(axis=0) for row in keep])
    np.testing.assert_allclose(output[0, 0], mean, atol=4 * ts.PRECISIONS[name].data.eps * 8 + 1e-6)
    np.testing.assert_allclose(
        lse[0, 0], k[0, 0, 0, 0] + np.log(keep.sum(axis=1)), atol=0.005 * 1e4 * (score != 0) + 1e-5
    )


def test_softcap_and_mask_numbers_are_rounded_once_to_the_data_type():
    one, v = np.ones((1, 1, 1, 1)), np.array([0.0, 1.0]).reshape(1, 1, 2, 1)
    k = np.zeros((1, 1, 2, 1))
    # Halfway between two halves, but for a bit that float32 has no room for.
    above = 1 + 2.0**-11 + 2.0**-40
    output = ts.attention(one, k, v, mask=np.array([[0.0, above]]))
    expected = ts.attention(one, k, v, mask=np.array([[0.0, 1 + 2.0**-10]]))
    below = ts.attention(one, k, v, mask=np.array([[0.0, 1.0]]))
    assert output == expected != below
    # 65,520 less a little is the largest half, not infinite: the key is visible.
    lse = ts.attention(one, k, v, mask=np.array([[-(65520 - 2.0**-20), -np.inf]]), return_lse=True)[1]
    assert lse == -65504
    # A softcap that half cannot hold is 0 there, not "none".
    output = ts.attention(one, 5 + v, v, mask="full", softcap=1e-9, scale=1.0)
    assert output == 0.5


def test_a_huge_but_finite_number_of_the_mask_hides_no_key_from_float():
    rng = np.random.default_rng(3)
    q, k, v = (rng.standard_normal((1, 1, n, 4)) for n in (2, 9, 9))
    bias = np.zeros((2, 9))
    bias[1] = -1.7e308
    expected = v[0, 0].mean(axis=0)
    np.testing.assert_allclose(ts.attention_reference(q, k, v, mask=bias)[0, 0, 1], expected, rtol=1e-14)
    bias[1] = np.finfo(np.float32).min
    for run in (ts.attention_reference, lambda *a, **o: ts.attention(*a, precision="float", **o)):
        np.testing.assert_allclose(run(q, k, v, mask=bias)[0, 0, 1], expected, rtol=1e-6)
    # Half knows no such number: there it is -inf, which hides.
    output, lse = ts.attention(q, k, v, mask=bias, return_lse=True)
    assert not output[0, 0, 1].any()
    assert np.isneginf(lse[0, 0, 1])


@pytest.mark.parametrize("heads", [(6, 2), (4, 4), (3, 1)])
def test_all_variants_together_on_long_problems(heads, rng):
    """Several blocks of rows, packed keys, tasks of one and of several heads."""
    query_heads, kv_heads = heads
    for seq_q, seq_kv in ((700, 900), (5, 1500)):
        q, k, v = (
            rng.standard_normal((2, n, seq, 32)).astype(np.float32)
            for n, seq in ((query_heads, seq_q), (kv_heads, seq_kv), (kv_heads, seq_kv))
        )
        k[1, :, 640:], v[1, :, 640:] = np.nan, np.inf
        mask = np.where(rng.random((2, 1, seq_q, seq_kv)) < 0.3, -np.inf, rng.standard_normal(seq_kv))
        options = {
            "mask": "causal", "attn_mask": mask.astype(np.float32), "key_lengths": [seq_kv, 640],
            "softcap": 5.0,
            "alibi_slopes": 2.0 ** -np.arange(1, query_heads + 1), "sinks": rng.standard_normal(query_heads),
        }  # fmt: skip
        expected, expected_lse = ts.attention_reference(q, k, v, return_lse=True, **options)
        for name, tolerance in (
            ("float", 1e-5),
            ("float-data-float-state", 1e-5),
            ("half-data-half-state", 0.02),
        ):
            runs = [
                ts.attention(
                    q, k, v, precision=name, threads=threads, return_lse=True,
                    tile=ts.Tile(kv_tile=200, kv_splits=splits), **options,
                )
                for threads, splits in ((1, 1), (4, 1), (1, 3), (4, 3))
            ]  # fmt: skip
            for output, lse in runs:
                np.testing.assert_allclose(output, expected, atol=tolerance)
                np.testing.assert_allclose(lse, expected_lse, atol=tolerance, rtol=tolerance)
            for one, many in ((0, 1), (2, 3)):
                assert runs[one][0].tobytes() == runs[many][0].tobytes()
                assert runs[one][1].tobytes() == runs[many][1].tobytes()


@pytest.mark.skipif(DISABLED, reason="nothing is compiled")
def test_all_variants_share_one_compiled_kernel_and_all_calls_without_another(rng):
    q, k, v = (rng.standard_normal((1, 2, 40, 16)).astype(np.float32) for _ in range(3))
    frozen = q.copy()
    frozen.flags.writeable = False
    without = [
        {}, {"key_lengths": [7]}, {"mask": "window", "window": (3, 0)}, {"scale": 1},
        {"tile": ts.Tile(kv_splits=2)},
    ]  # fmt: skip
    variants = [
        {"sinks": [0.0, 1.0]}, {"sinks": np.zeros(2, np.float32)}, {"alibi_slopes": np.ones(2)},
        {"alibi_slopes": np.broadcast_to(np.float32(1), 2), "precision": "bfloat16-data-float-state"},
        {"attn_mask": np.ones((40, 40), bool)}, {"attn_mask": np.zeros((40, 40))}, {"softcap": 3.0},
    ]  # fmt: skip
    for options in without + variants:
        ts.attention(frozen, k, v, **options)
    ts.attention(q[:, :, ::2], k[:, :, ::-1], v)
    assert len(attention_worker.signatures) == 2


@pytest.mark.parametrize("precision", ["float", "half-data-float-state", "half-data-half-state"])
def test_a_tile_of_infinite_scores_counts_alike_with_and_without_neighbours(precision):
    q, k, v = np.zeros((1, 2, 1, 16)), np.zeros((1, 1, 2, 16)), np.ones((1, 1, 2, 16))
    # The first key scores -inf with head 0 and 0 with head 1; its value times a probability of 0 is NaN.
    q[0, 0, 0, 0], k[0, 0, 0, 0], v[0, 0, 0] = -6e4 if precision != "float" else -np.inf, 6e4, np.inf
    options = {"mask": "full", "precision": precision, "tile": ts.Tile(kv_tile=1)}
    both, alone = ts.attention(q, k, v, **options), ts.attention(q[:, :1], k, v, **options)
    assert np.isnan(both[0, 0]).all()
    assert np.isnan(alone[0, 0]).all()


@pytest.mark.parametrize("value", [1.0, np.inf, np.nan])
def test_a_row_whose_only_score_is_minus_infinity_gives_zero(value):
    q, k, v = np.ones((1, 1, 1, 4)), np.full((1, 1, 1, 4), -np.inf), np.full((1, 1, 1, 4), value)
    assert (ts.attention_reference(q, k, v) == 0).all()
    for precision in ("float", "half-data-float-state"):
        assert (ts.attention(q, k, v, precision=precision) == 0).all()


@pytest.mark.parametrize(("precision", "sink"), [("half-data-half-state", 7e4), ("float", 1e39)])
def test_sinks_that_the_state_cannot_hold_are_refused(precision, sink):
    x = np.ones((1, 2, 4, 16), np.float32)
    with pytest.raises(InputError, match="must be at most"):
        ts.attention(x, x, x, sinks=[0.0, sink], precision=precision)

"""The float64 reference against definitions: plain softmax attention row by row, and limits known by hand."""

import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from strategies import problems

import tilesim as ts
from tilesim import reference


def by_definition(problem):
    """Attention of one row at a time over its visible keys, with Python's exactly rounded sums."""
    import math

    q, k, v = (x.astype(np.float64) for x in (problem.q, problem.k, problem.v))
    batch, heads, seq_q, _ = q.shape
    group = heads // k.shape[1]
    output = np.zeros((batch, heads, seq_q, v.shape[3]))
    lse = np.full((batch, heads, seq_q), -np.inf)
    for b, h, i in np.ndindex(batch, heads, seq_q):
        keys = np.flatnonzero(problem.visible[i])
        if keys.size == 0:
            continue
        scores = [problem.scale * math.fsum(q[b, h, i] * k[b, h // group, j]) for j in keys]
        top = max(scores)
        weights = [math.exp(score - top) for score in scores]
        total = math.fsum(weights)
        lse[b, h, i] = top + math.log(total)
        for d in range(v.shape[3]):
            output[b, h, i, d] = math.fsum(np.array(weights) * v[b, h // group, keys, d]) / total
    return output, lse


@given(problems(max_seq_q=8, max_seq_kv=40, max_dim=9))
def test_reference_is_attention_by_definition(problem):
    got, lse = ts.attention_reference(
        problem.q,
        problem.k,
        problem.v,
        mask=problem.mask,
        window=problem.window,
        scale=problem.scale,
        return_lse=True,
    )
    expected, expected_lse = by_definition(problem)
    size = max(1.0, float(np.abs(problem.v).max()))
    np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12 * size)
    np.testing.assert_allclose(lse, expected_lse, rtol=1e-12, atol=1e-12)


def test_blocks_of_rows_join_without_a_seam(rng, monkeypatch):
    q, k, v = (rng.standard_normal((1, 2, 50, 8)) for _ in range(3))
    whole = ts.attention_reference(q, k, v, mask="window", window=(7, 3))
    monkeypatch.setattr(reference, "_BLOCK_ROWS", 3)
    np.testing.assert_allclose(
        ts.attention_reference(q, k, v, mask="window", window=(7, 3)), whole, rtol=1e-13, atol=1e-15
    )


def test_equal_scores_average_the_values():
    v = np.arange(12.0).reshape(1, 1, 6, 2)
    zeros = np.zeros((1, 1, 6, 4))
    got, lse = ts.attention_reference(zeros, zeros, v, return_lse=True)
    for row in range(6):
        np.testing.assert_allclose(got[0, 0, row], v[0, 0, : row + 1].mean(axis=0), rtol=1e-15)
        assert lse[0, 0, row] == pytest.approx(np.log(row + 1))


def test_rows_without_keys_give_zero_and_minus_infinity():
    x = np.ones((1, 1, 5, 2))
    got, lse = ts.attention_reference(x, x[:, :, :2], x[:, :, :2], mask="causal", return_lse=True)
    assert not got[0, 0, :3].any()
    assert np.isneginf(lse[0, 0, :3]).all()
    np.testing.assert_array_equal(got[0, 0, 3:], 1.0)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_hidden_value_never_reaches_the_output(bad):
    x = np.ones((1, 1, 4, 2))
    v = x.copy()
    v[0, 0, 2] = bad
    got = ts.attention_reference(x, x, v)
    np.testing.assert_array_equal(got[0, 0, :2], 1.0)
    np.testing.assert_array_equal(got[0, 0, 2:], bad)


def test_a_key_that_is_not_a_number_spoils_only_the_rows_that_see_it():
    x = np.ones((1, 1, 4, 2))
    k = x.copy()
    k[0, 0, 2, 1] = np.nan
    got = ts.attention_reference(x, k, x)
    np.testing.assert_array_equal(got[0, 0, :2], 1.0)
    assert np.isnan(got[0, 0, 2:]).all()


def test_huge_scores_do_not_overflow():
    q = np.full((1, 1, 2, 1), 1e8)
    k = np.array([1e8, -1e8]).reshape(1, 1, 2, 1)
    v = np.array([3.0, 5.0]).reshape(1, 1, 2, 1)
    got, lse = ts.attention_reference(q, k, v, mask="full", scale=1.0, return_lse=True)
    np.testing.assert_array_equal(got, 3.0)
    np.testing.assert_array_equal(lse, 1e16)


def test_memory_does_not_grow_with_the_square_of_the_length():
    x = np.ones((1, 1, 8192, 4), np.float32)
    tracemalloc.start()
    ts.attention_reference(x[:, :, :512], x, x)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8192 * 512 * 8 * 2


def test_masks_are_taken_a_block_at_a_time():
    x = np.ones((1, 1, 4096, 4), np.float32)
    mask = np.broadcast_to(np.zeros((), np.float32), (4096, 4096))
    tracemalloc.start()
    ts.attention_reference(x, x, x, mask=mask)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 4096 * 4096 * 4

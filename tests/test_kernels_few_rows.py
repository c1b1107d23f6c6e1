"""Decoding reads keys and values as they lie; it must give the bits of the kernel that packs them."""

import numpy as np
import pytest

import tilesim as ts
from tilesim.kernels.few_rows import MOST_ROWS, VALUE_COLUMNS

POLICIES = list(ts.PRECISIONS)


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize(
    ("group", "depth", "width"), [(1, 128, 128), (2, 64, 64), (3, 40, 192), (4, 17, 128)]
)
def test_rows_taken_alone_have_the_same_bits(policy, group, depth, width, rng):
    assert width % VALUE_COLUMNS == 0
    assert group <= MOST_ROWS
    kv_heads, seq_q, seq_kv = 4, 16, 700
    q = rng.standard_normal((1, kv_heads * group, seq_q, depth), np.float32)
    k = rng.standard_normal((1, kv_heads, seq_kv, depth), np.float32)
    v = rng.standard_normal((1, kv_heads, seq_kv, width), np.float32)
    options = {"mask": "full", "precision": policy, "threads": 1, "return_lse": True}
    for tile in (ts.Tile(), ts.Tile(kv_tile=100)):
        whole, whole_lse = ts.attention(q, k, v, tile=tile, **options)
        for row in (0, 7, 15):
            alone, lse = ts.attention(q[:, :, row : row + 1], k, v, tile=tile, **options)
            np.testing.assert_array_equal(alone[:, :, 0], whole[:, :, row])
            np.testing.assert_array_equal(lse[:, :, 0], whole_lse[:, :, row])


@pytest.mark.parametrize("policy", POLICIES)
def test_keys_that_are_hidden_change_no_bit_whatever_they_hold(policy, rng):
    q = rng.standard_normal((2, 4, 1, 64), np.float32)
    k, v = (rng.standard_normal((2, 4, 300, 64), np.float32) for _ in range(2))
    options = {"precision": policy, "threads": 1, "key_lengths": [131, 0]}
    expected = ts.attention(q, k, v, **options)
    k[0, :, 131:] = np.nan
    v[0, :, 131:] = np.inf
    k[1], v[1] = np.nan, np.nan
    np.testing.assert_array_equal(ts.attention(q, k, v, **options), expected)
    assert (expected[1] == 0).all()


@pytest.mark.parametrize("policy", POLICIES)
def test_values_that_are_seen_and_not_finite_spoil_their_column_only(policy, rng):
    q = rng.standard_normal((1, 4, 1, 64), np.float32)
    k, v = (rng.standard_normal((1, 4, 300, 64), np.float32) for _ in range(2))
    v[0, 2, 17, 5] = np.nan
    output = ts.attention(q, k, v, precision=policy, threads=1)
    assert np.argwhere(np.isnan(output)).tolist() == [[0, 2, 0, 5]]


def test_splits_of_a_long_decode_agree_with_float64(rng):
    q = rng.standard_normal((1, 8, 1, 128), np.float32)
    k, v = (rng.standard_normal((1, 2, 5000, 128), np.float32) for _ in range(2))
    exact = ts.attention_reference(q, k, v)
    for splits in (1, 3, 8):
        output = ts.attention(q, k, v, precision="float", tile=ts.Tile(kv_splits=splits))
        np.testing.assert_allclose(output, exact, atol=2e-7)

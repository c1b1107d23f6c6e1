"""The attention kernel and a loop over softmax_flash_v2 calls, written by hand, give the same bits."""

import numpy as np
import pytest

import tilesim as ts
from tilesim.samples import load_sample

ROWS, KV_TILE, HEAD_DIM = 8, 512, 64
STATES = {"half-data-float-state": np.float32, "half-data-half-state": np.float16}


def product(a, b):
    """Return A @ B of halves with float sums, one product after the other; each product is exact in float."""
    total = np.zeros((a.shape[0], b.shape[1]), np.float32)
    for index in range(a.shape[1]):
        total += a[:, index : index + 1].astype(np.float32) * b[index].astype(np.float32)
    return total.astype(np.float16)


def cast_round(x, dtype):
    """Return positive float32 rounded to half, ties away from zero; normal numbers only."""
    if dtype == np.float32:
        return x
    return ((x.view(np.int32) + 0x1000) & ~0x1FFF).view(np.float32)


def attention_by_hand(q, k, v, state, exp_maxima):
    """Return output and lse of ROWS queries that see all keys; q, k, v of one head in half."""
    lanes = 32 // np.dtype(state).itemsize
    row_sum, row_max = np.zeros((ROWS, lanes), state), np.zeros((ROWS, lanes), state)
    exp_max = np.zeros((ROWS, 16), np.float16)
    accumulated = None
    for low in range(0, len(k), KV_TILE):
        tile = slice(low, min(low + KV_TILE, len(k)))
        scores = product(q, k[tile].T) * np.float16(HEAD_DIM**-0.5)
        shape, update = scores.shape, low > 0
        basic = shape[1] % 64 == 0
        workspace, _ = ts.softmax_flash_v2_tmp_bytes(shape, 2, row_sum.itemsize, update, basic)
        tiling = ts.softmax_flash_v2_tiling(shape, 2, row_sum.itemsize, workspace, update, basic)
        ts.softmax_flash_v2(
            scores, row_sum, row_max, scores, exp_max, row_sum, row_max, tiling,
            is_update=update, is_basic_block=basic,
        )  # fmt: skip
        partial = product(scores, v[tile])
        if update:
            exp_maxima.append(exp_max[:, 0].copy())
            # NumPy multiplies and adds halves with one rounding each.
            accumulated = exp_max[:, :1] * accumulated + partial
        else:
            accumulated = partial
    total = row_sum[:, 0].astype(np.float32)
    output = accumulated.astype(np.float32) / cast_round(total, np.float16)[:, None]
    lse = row_max[:, 0].astype(np.float32) + np.log(total.astype(np.float64))
    return output.astype(np.float16), lse.astype(np.float32)


@pytest.mark.parametrize("policy", STATES)
@pytest.mark.parametrize("keys", [1024, 960, 512, 320])
def test_simulation_is_a_loop_over_the_operator(policy, keys):
    q, k, v = load_sample()
    # Backwards: most of the weight lies on the first keys, and the maximum should move between tiles.
    q, k, v = q[:, 3:5, -ROWS:], k[:, 1:2, :keys][:, :, ::-1], v[:, 1:2, :keys][:, :, ::-1]
    result = ts.simulate(q, k, v, mask="full", precision=policy)
    exp_maxima = []
    for head in range(2):
        output, lse = attention_by_hand(q[0, head], k[0, 0], v[0, 0], STATES[policy], exp_maxima)
        np.testing.assert_array_equal(result.output[0, head], output)
        np.testing.assert_array_equal(result.lse[0, head], lse)
    assert keys <= KV_TILE or any((factors != 1).any() for factors in exp_maxima)

"""Attention against an independent float64 softmax: shapes, masks, dtypes, layouts, special values."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from strategies import Problem, problems

import tilesim as ts
from tilesim.dtypes import HALF

POLICIES = list(ts.PRECISIONS)


def oracle(problem):
    """Return output and lse in float64 by the textbook, with the full score matrix."""
    repeat = problem.q.shape[1] // problem.k.shape[1]
    q = problem.q.astype(np.float64)
    k, v = (np.repeat(x.astype(np.float64), repeat, axis=1) for x in (problem.k, problem.v))
    scores = np.where(problem.visible, q @ k.swapaxes(2, 3) * problem.scale, -np.inf)
    top = scores.max(axis=-1, keepdims=True)
    weights = np.exp(scores - np.where(np.isfinite(top), top, 0.0))
    total = weights.sum(axis=-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + np.where(np.isfinite(top), top, 0.0))[..., 0]
    return weights @ v / np.where(total > 0, total, 1.0), np.where(total[..., 0] > 0, lse, -np.inf)


def attend(problem, precision="float", **options):
    return ts.attention(
        problem.q, problem.k, problem.v, mask=problem.mask, window=problem.window, scale=problem.scale,
        tile=ts.Tile(kv_tile=problem.kv_tile), precision=precision, return_lse=True, **options,
    )  # fmt: skip


def score_size(problem):
    """Largest sum of |q * k| of any pair, times the scale: what rounding errors of scores grow with."""
    repeat = problem.q.shape[1] // problem.k.shape[1]
    k = np.repeat(np.abs(problem.k).astype(np.float64), repeat, axis=1)
    return float((np.abs(problem.q) @ k.swapaxes(2, 3)).max() * abs(problem.scale))


@settings(max_examples=60)
@given(problem=problems())
def test_float_policies_stay_within_the_rounding_of_binary32(problem):
    expected, expected_lse = oracle(problem)
    eps = 2.0**-24
    # Scores carry head_dim roundings, weights twice that, sums and accumulators one per key.
    depth, keys = problem.q.shape[3], problem.k.shape[2]
    bound = eps * (4 * (depth + 4) * score_size(problem) + 4 * keys + 16) * np.abs(problem.v).max()
    for name in ("float", "float-data-float-state"):
        output, lse = attend(problem, name)
        assert np.abs(output - expected).max() <= bound
        finite = np.isfinite(expected_lse)
        assert (np.isfinite(lse) == finite).all()
        lse_bound = eps * (4 * (depth + 4) * score_size(problem) + 4 * keys + 16 + 4 * np.abs(lse[finite]))
        assert (np.abs(lse[finite] - expected_lse[finite]) <= lse_bound).all()


@settings(max_examples=60)
@given(problem=problems(max_seq_kv=80))
def test_narrow_policies_stay_within_their_own_rounding(problem):
    expected, _ = oracle(problem)
    for name in ("half-data-float-state", "half-data-half-state", "bfloat16-data-float-state"):
        eps = ts.PRECISIONS[name].data.eps / 2
        tiles = -(-problem.k.shape[2] // problem.kv_tile)
        # q and k rounded, score rounded twice: each moves a score by eps of its size and a weight by as much.
        bound = (8 * eps * score_size(problem) + eps * (4 * tiles + 8)) * np.abs(problem.v).max() + 2.0**-22
        output, _ = attend(problem, name)
        assert np.abs(output - expected).max() <= np.expm1(min(bound, 700.0)) * 1.5


@pytest.mark.parametrize("policy", POLICIES)
def test_output_has_shape_and_dtype_of_q(policy, rng):
    for dtype in (np.float16, ml_dtypes.bfloat16, np.float32, np.float64):
        q, k, v = (rng.standard_normal((2, 2, 5, 16)).astype(dtype) for _ in range(3))
        output, lse = ts.attention(q, k, v, precision=policy, return_lse=True)
        assert output.shape == q.shape
        assert output.dtype == q.dtype
        assert lse.shape == (2, 2, 5)
        assert lse.dtype == np.float32


def test_every_tail_length_of_queries_and_keys(rng):
    q, k, v = (rng.standard_normal((1, 1, 80, 16)).astype(np.float32) for _ in range(3))
    for seq in (*range(1, 35), 63, 64, 65, 79):
        for mask in ("causal", "full"):
            problem = Problem(q[:, :, :seq], k[:, :, :seq], v[:, :, :seq], mask, None, 32, 0.25)
            expected, _ = oracle(problem)
            assert np.abs(attend(problem)[0] - expected).max() < 2e-6


@pytest.mark.parametrize("head_dim", [1, 2, 3, 8, 15, 16, 17, 40, 60, 80, 96, 128, 200, 256, 300])
def test_every_kind_of_head_dim(head_dim, rng):
    q, k, v = (rng.standard_normal((1, 2, 40, head_dim)).astype(np.float32) for _ in range(3))
    problem = Problem(q, k, v, "causal", None, 16, head_dim**-0.5)
    assert np.abs(attend(problem)[0] - oracle(problem)[0]).max() < 5e-6


def test_grouped_heads_read_their_own_key_head():
    for heads, kv_heads in ((6, 2), (12, 4), (4, 1), (5, 5)):
        q, k = np.zeros((1, heads, 1, 4), np.float32), np.zeros((1, kv_heads, 3, 4), np.float32)
        v = np.broadcast_to(np.arange(1.0, kv_heads + 1)[None, :, None, None], (1, kv_heads, 3, 4))
        output = ts.attention(q, k, v, mask="full")
        expected = np.repeat(np.arange(1, kv_heads + 1), heads // kv_heads)
        np.testing.assert_array_equal(output[0, :, 0, 0], expected)


def test_causal_with_other_lengths_is_aligned_bottom_right():
    def uniform(seq_q, seq_kv):
        v = np.arange(1.0, seq_kv + 1, dtype=np.float32)[None, None, :, None]
        q, k = np.zeros((1, 1, seq_q, 16), np.float32), np.zeros((1, 1, seq_kv, 16), np.float32)
        return ts.attention(q, k, v, precision="float")[0, 0, :, 0]

    np.testing.assert_allclose(uniform(3, 5), [2.0, 2.5, 3.0], rtol=1e-6)
    np.testing.assert_allclose(uniform(5, 3), [0.0, 0.0, 1.0, 1.5, 2.0], rtol=1e-6)
    np.testing.assert_allclose(uniform(1, 9), [5.0], rtol=1e-6)
    np.testing.assert_allclose(uniform(20, 520)[[0, 1, 10, 19]], [251.0, 251.5, 256.0, 260.5], rtol=1e-6)


@pytest.mark.parametrize("policy", POLICIES)
def test_layouts_byte_order_and_read_only_change_nothing(policy, rng):
    q, k, v = (rng.standard_normal((2, 3, 20, 16)).astype(np.float32) for _ in range(3))
    expected = ts.attention(q, k, v, precision=policy)

    def same(*tensors):
        output = ts.attention(*tensors, precision=policy)
        np.testing.assert_array_equal(output, expected)
        assert output.dtype.isnative

    same(*(np.asfortranarray(x) for x in (q, k, v)))
    same(*(np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)))
    same(*(x[..., ::-1].copy()[..., ::-1] for x in (q, k, v)))
    same(*(x.astype(">f4") for x in (q, k, v)))
    for x in (q, k, v):
        x.flags.writeable = False
    same(q, k, v)
    same(*(x.astype(np.float64) for x in (q, k, v)))


def test_inputs_are_left_alone(rng):
    tensors = [rng.standard_normal((1, 2, 20, 16)).astype(np.float32) for _ in range(3)]
    copies = [x.copy() for x in tensors]
    ts.attention(*tensors, precision="half-data-half-state")
    for tensor, copy in zip(tensors, copies, strict=True):
        np.testing.assert_array_equal(tensor, copy)


def test_float64_is_rounded_to_half_once():
    value = 1 + 2.0**-11 + 2.0**-40  # to half 1 + 2^-10; by way of float32, a tie, it would be 1
    q, k, v = np.zeros((1, 1, 1, 4)), np.zeros((1, 1, 1, 4)), np.full((1, 1, 1, 4), value)
    assert ts.attention(q, k, v)[0, 0, 0, 0] == 1 + 2.0**-10


class TestSpecialValues:
    """NaN and infinities reach the rows they belong to and no others, under every policy."""

    @pytest.fixture
    def tensors(self, rng):
        return [rng.standard_normal((1, 1, n, 16)).astype(np.float32) for n in (8, 1024, 1024)]

    @pytest.mark.parametrize("policy", POLICIES)
    def test_nan_query_spoils_its_row(self, policy, tensors):
        q, k, v = tensors
        q[0, 0, 2, 0] = np.nan
        output, lse = ts.attention(q, k, v, mask="full", precision=policy, return_lse=True)
        assert np.isnan(output).all(axis=-1).nonzero()[2].tolist() == [2]
        assert np.isnan(output).sum() == 16
        assert np.isnan(lse[0, 0]).nonzero()[0].tolist() == [2]

    @pytest.mark.parametrize("policy", POLICIES)
    def test_nan_key_spoils_the_rows_that_see_it(self, policy, tensors):
        q, k, v = tensors
        k[0, 0, 1020, 0] = np.nan
        output = ts.attention(q, k, v, mask="causal", precision=policy)
        assert np.isnan(output).all(axis=-1)[0, 0].tolist() == [False] * 4 + [True] * 4
        assert np.isnan(output).sum() == 64

    @pytest.mark.parametrize("policy", POLICIES)
    @pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
    def test_a_value_reaches_its_column_in_rows_that_see_it(self, policy, value, tensors):
        q, k, v = tensors
        v[0, 0, 1021, 3] = value
        output = ts.attention(q, k, v, mask="causal", precision=policy)
        expected = np.zeros((8, 16), bool)
        expected[5:, 3] = True
        np.testing.assert_array_equal(~np.isfinite(output[0, 0]), expected)
        assert np.array_equal(output[0, 0, 5:, 3], np.full(3, value), equal_nan=True)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_infinite_scores(self, policy, tensors):
        q, k, v = tensors
        k[0, 0, 7] = np.inf * np.sign(q[0, 0, 0])
        output = ts.attention(q, k, v, mask="full", precision=policy)
        assert np.isnan(output[0, 0, 0]).all()
        k[0, 0, 7] = -np.inf * np.sign(q[0, 0, 0])
        without = np.delete(np.arange(1024), 7)
        got = ts.attention(q[:, :, :1], k, v, mask="full", precision=policy)
        rest = ts.attention(q[:, :, :1], k[:, :, without], v[:, :, without], mask="full", precision="float")
        np.testing.assert_allclose(got, rest, atol=0.05)

    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_row_whose_scores_are_all_minus_infinity_has_no_key(self, policy, tensors):
        q, k, v = tensors
        q[0, 0, 3] = np.abs(q[0, 0, 3])
        k[:] = np.abs(k)
        q[0, 0, 3, 0] = -np.inf
        output, lse = ts.attention(q, k, v, mask="full", precision=policy, return_lse=True)
        expected, expected_lse = ts.attention_reference(q, k, v, mask="full", return_lse=True)
        for got_output, got_lse in ((output, lse), (expected, expected_lse)):
            assert (got_output[0, 0, 3] == 0).all()
            assert got_lse[0, 0, 3] == -np.inf
            assert np.isfinite(got_output).all()

    @pytest.mark.parametrize("policy", POLICIES)
    def test_a_first_tile_without_keys_then_others(self, policy, rng):
        q, k, v = (rng.standard_normal((1, 1, 1536, 32)).astype(np.float32) for _ in range(3))
        output = ts.attention(q, k, v, mask="window", window=(100, 0), precision=policy)
        assert np.isfinite(output).all()
        expected, _ = oracle(Problem(q, k, v, "window", (100, 0), 512, 32**-0.5))
        eps = ts.PRECISIONS[policy].data.eps
        assert np.abs(output - expected).max() < 100 * eps

    def test_scores_beyond_half_give_no_finite_nonsense(self):
        q = np.full((1, 1, 8, 128), 32.0, np.float16)
        k = np.full((1, 1, 1024, 128), 32.0, np.float16)
        v = (np.arange(1024 * 4).reshape(1, 1, 1024, 4) % 7).astype(np.float16)
        assert np.isnan(ts.attention(q, k, v, mask="full")).all()
        np.testing.assert_allclose(
            ts.attention(q, k, v, mask="full", precision="float").astype(np.float32),
            np.broadcast_to(v.astype(np.float64).mean(axis=2, keepdims=True), (1, 1, 8, 4)),
            atol=2e-3,
        )

    def test_float_sums_add_up_where_half_stands_still(self):
        s16 = np.float16(-5.5964)
        scores = np.concatenate([np.zeros(8 * 512), np.full(56 * 512, s16)]).astype(np.float16)
        q, k = np.ones((1, 1, 1, 1), np.float16), scores[None, None, :, None]
        v = np.concatenate([np.zeros(8 * 512), np.ones(56 * 512)]).astype(np.float16)[None, None, :, None]
        _, lse = ts.attention(q, k, v, mask="full", scale=1.0, return_lse=True)
        assert np.exp(lse[0, 0, 0]) == pytest.approx(4202.27393636, rel=1e-5)
        _, lse = ts.attention(
            q, k, v, mask="full", scale=1.0, precision="half-data-half-state", return_lse=True
        )
        assert np.exp(lse[0, 0, 0]) == pytest.approx(4096.0, rel=1e-6)


class TestRefusals:
    good = np.zeros((1, 2, 4, 8), np.float32)

    @pytest.mark.parametrize(
        ("q", "k", "v", "words"),
        [
            (good[0], good, good, ["q.shape", "(2, 4, 8)", "4 axes"]),
            (good, good, good[..., None], ["v.shape", "4 axes"]),
            (good, good[:, :, :3], good, ["v.shape", "(1, 2, 4, 8)", "(1, 2, 3, 8)"]),
            (good, good[..., :4], good, ["k.shape", "head_dim"]),
            (np.zeros((2, 2, 4, 8), np.float32), good, good, ["k.shape", "batch"]),
            (np.zeros((1, 3, 4, 8), np.float32), good, good, ["2 heads", "3 heads"]),
            (good[:, :0], good, good, ["shape", "at least 1 head"]),
            (good, good[..., :0], good, ["k.shape", "head_dim"]),
            ("text", good, good, ["q", "dtype"]),
            (None, good, good, ["q", "dtype"]),
        ],
    )
    def test_shapes_that_do_not_belong_together(self, q, k, v, words):
        with pytest.raises(ts.InputError) as error:
            ts.attention(q, k, v)
        for word in words:
            assert word in str(error.value)

    @pytest.mark.parametrize("dtype", [np.int32, np.int8, bool, np.complex64, object, np.longdouble, "M8[s]"])
    def test_other_dtypes(self, dtype):
        bad = np.zeros((1, 2, 4, 8), dtype)
        good = self.good
        for tensors in ((bad, good, good), (good, bad, good), (good, good, bad)):
            with pytest.raises(ts.DTypeError, match="float16, bfloat16, float32 or float64"):
                ts.attention(*tensors)
        with pytest.raises(TypeError):
            ts.attention(bad, self.good, self.good)

    @pytest.mark.parametrize("scale", [np.nan, np.inf, "1", None.__class__, True, 1j])
    def test_scales(self, scale):
        with pytest.raises(ts.InputError, match="scale"):
            ts.attention(self.good, self.good, self.good, scale=scale)

    def test_unknown_names_come_with_a_suggestion(self):
        with pytest.raises(ts.UnknownNameError, match="half-data-float-state"):
            ts.attention(self.good, self.good, self.good, precision="half-data-float-stat")
        with pytest.raises(ts.UnknownNameError, match="causal"):
            ts.attention(self.good, self.good, self.good, mask="casual")


def test_scale_zero_and_zero_dimensional_scales(rng):
    q, k, v = (rng.standard_normal((1, 1, 8, 16)).astype(np.float32) for _ in range(3))
    output = ts.attention(q, k, v, mask="full", scale=0.0, precision="float")
    np.testing.assert_allclose(output[0, 0, 0], v[0, 0].mean(axis=0), atol=1e-6)
    for scale in (0.25, np.float32(0.25), np.array(0.25)):
        np.testing.assert_array_equal(
            ts.attention(q, k, v, scale=scale, precision="float"), ts.attention(q, k, v, precision="float")
        )


def test_half_outputs_are_halves(rng):
    q, k, v = (rng.standard_normal((1, 1, 40, 16)).astype(np.float32) for _ in range(3))
    output = ts.attention(q, k, v, precision="half-data-float-state")
    assert (output == output.astype(np.float16)).all()
    assert np.abs(output).max() < HALF.max_value

"""The compiled kernel against the NumPy model of the reference kernel (bit by bit) and its own promises."""

import threading

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from strategies import problems
from tile_model import attention_head, is_basic

from tilesim.engine import run_kernel
from tilesim.kernels.vector import BLOCK
from tilesim.precision import PRECISIONS
from tilesim.problem import read_problem
from tilesim.tile import Tile


def run(problem, policy, **options):
    stated = state(
        problem.q, problem.k, problem.v, mask=problem.mask, window=problem.window, scale=problem.scale
    )
    return run_kernel(stated, tile=Tile(kv_tile=problem.kv_tile), policy=policy, **options)


def state(q, k, v, mask="full", window=None, scale=0.1, **options):
    return read_problem(q, k, v, mask=mask, window=window, scale=scale, options=options)


def model(problem, policy, batch, head):
    kv_head = head // (problem.q.shape[1] // problem.k.shape[1])
    return attention_head(
        problem.q[batch, head],
        problem.k[batch, kv_head],
        problem.v[batch, kv_head],
        visible=problem.visible,
        scale=problem.scale,
        data=policy.data.name,
        state=policy.state.name,
        kv_tile=problem.kv_tile,
        basic=is_basic(problem.kv_tile, policy),
        fused=BLOCK.fused,
    )


@pytest.mark.parametrize("name", list(PRECISIONS))
@settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(max_seq_q=10, max_seq_kv=90, max_dim=20, batches=1))
def test_every_rounding_point_bit_by_bit(name, problem):
    policy = PRECISIONS[name]
    got = run(problem, policy)
    head = problem.q.shape[1] - 1
    output, states = model(problem, policy, 0, head)
    seen = problem.visible.any(axis=1)
    lse = (states[seen, 0] + np.log(states[seen, 1].astype(np.float64))).astype(np.float32)
    if name == "float":
        # The plain policy prescribes neither the order of sums nor where the scale is applied.
        largest = float(np.abs(problem.v).max())
        scores = float(np.abs(lse).max(initial=1.0))
        np.testing.assert_allclose(got.output[0, head], output, rtol=0, atol=4e-6 * largest * scores)
        np.testing.assert_allclose(got.lse[0, head, seen], lse, rtol=2e-6, atol=2e-6)
    else:
        np.testing.assert_array_equal(got.output[0, head], output)
        np.testing.assert_array_equal(got.lse[0, head, seen], lse)
    assert (got.lse[0, head, ~seen] == -np.inf).all()


@pytest.mark.parametrize("kv_tile", [1, 8, 9, 15, 16, 17, 24, 31, 32, 33, 40])
@pytest.mark.parametrize("mask", ["causal", "full"])
def test_narrow_tiles_whose_rows_end_anywhere(kv_tile, mask, rng):
    """Rows of a group that see fewer columns than the widest of them, across the widths of registers."""
    q, k, v = (rng.standard_normal((1, 1, 41, 5)).astype(np.float32) for _ in range(3))
    visible = np.tri(41, dtype=bool) if mask == "causal" else np.ones((41, 41), bool)
    for name, policy in PRECISIONS.items():
        got = run_kernel(state(q, k, v, mask=mask, scale=0.7), tile=Tile(kv_tile=kv_tile), policy=policy)
        output, _ = attention_head(
            q[0, 0], k[0, 0], v[0, 0], visible=visible, scale=0.7, data=policy.data.name,
            state=policy.state.name, kv_tile=kv_tile, basic=is_basic(kv_tile, policy), fused=BLOCK.fused,
        )  # fmt: skip
        tolerance = 2e-6 if name == "float" else 0
        np.testing.assert_allclose(got.output[0, 0], output, rtol=0, atol=tolerance, err_msg=name)


@pytest.mark.parametrize("kv_tile", [512, 576, 1024, 1100])
@pytest.mark.parametrize("seq_kv", [511, 512, 600, 1000, 1024, 1500])
def test_long_tiles_add_in_the_documented_order(kv_tile, seq_kv, rng):
    q, k, v = (rng.standard_normal((1, 1, n, 8)).astype(np.float32) for n in (3, seq_kv, seq_kv))
    for name in ("half-data-float-state", "float-data-float-state"):
        policy = PRECISIONS[name]
        got = run_kernel(state(q, k, v, scale=0.4), tile=Tile(kv_tile=kv_tile), policy=policy)
        visible = np.ones((3, seq_kv), bool)
        output, _ = attention_head(
            q[0, 0], k[0, 0], v[0, 0], visible=visible, scale=0.4, data=policy.data.name,
            state=policy.state.name, kv_tile=kv_tile, basic=is_basic(kv_tile, policy), fused=BLOCK.fused,
        )  # fmt: skip
        np.testing.assert_array_equal(got.output[0, 0], output)


@settings(max_examples=25)
@given(problem=problems())
def test_the_number_of_threads_changes_no_bit(problem):
    for name in ("float", "half-data-half-state"):
        one = run(problem, PRECISIONS[name], threads=1)
        for threads in (2, 5):
            # Small problems run in one thread: force the workers by asking for progress.
            many = run(problem, PRECISIONS[name], threads=threads, progress=lambda done, total: None)
            assert one.output.tobytes() == many.output.tobytes()
            assert one.lse.tobytes() == many.lse.tobytes()


def test_threads_on_a_problem_large_enough_to_share(rng):
    q, k, v = (rng.standard_normal((1, 4, 700, 64)).astype(np.float32) for _ in range(3))
    policy = PRECISIONS["half-data-float-state"]
    runs = [
        run_kernel(state(q, k, v, "causal"), tile=Tile(), policy=policy, threads=threads)
        for threads in (1, 2, 3, 8)
    ]
    assert [r.threads for r in runs] == [1, 2, 3, 8]
    assert len({r.output.tobytes() for r in runs}) == 1


def test_softmax_rows_changes_no_number_and_kv_tile_does(rng):
    q, k, v = (rng.standard_normal((1, 1, 300, 32)).astype(np.float32) for _ in range(3))
    policy = PRECISIONS["half-data-float-state"]

    def output(tile):
        return run_kernel(state(q, k, v, "causal"), tile=tile, policy=policy).output.tobytes()

    base = output(Tile(kv_tile=128))
    assert all(output(Tile(kv_tile=128, softmax_rows=rows)) == base for rows in (1, 2, 16, 256))
    assert output(Tile(kv_tile=64)) != base


def test_rows_do_not_depend_on_their_neighbours(rng):
    q, k, v = (rng.standard_normal((1, 2, 45, 24)).astype(np.float32) for _ in range(3))
    policy = PRECISIONS["half-data-half-state"]
    options = {"tile": Tile(kv_tile=16), "policy": policy}
    whole = run_kernel(state(q, k, v), **options).output
    for row in (0, 7, 8, 44):
        alone = run_kernel(state(q[:, :, row : row + 1], k, v), **options)
        np.testing.assert_array_equal(alone.output[:, :, 0], whole[:, :, row])


def test_callers_in_several_threads_at_once(rng):
    q, k, v = (rng.standard_normal((1, 2, 200, 64)).astype(np.float32) for _ in range(3))
    policy = PRECISIONS["float"]

    def output():
        return run_kernel(state(q, k, v, "causal"), tile=Tile(), policy=policy).output.tobytes()

    expected, results = output(), []
    callers = [threading.Thread(target=lambda: results.extend(output() for _ in range(10))) for _ in range(4)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert results == [expected] * 40


def test_progress_counts_up_to_all_tasks(rng):
    q, k, v = (rng.standard_normal((1, 2, 300, 16)).astype(np.float32) for _ in range(3))
    seen = []
    run_kernel(
        state(q, k, v), tile=Tile(), policy=PRECISIONS["float"],
        progress=lambda done, total: seen.append((done, total)),
    )  # fmt: skip
    assert seen
    assert seen[-1][0] == seen[-1][1]
    assert sorted(seen) == seen


@pytest.mark.parametrize("name", [name for name in PRECISIONS if name != "float"])
def test_a_scale_of_minus_zero_is_not_taken_for_zero(name):
    q, k = np.float32([[[[5.0]]]]), np.float32([[[[1.0]]]])
    signs = []
    for scale in (0.0, -0.0, 0.0):
        run = run_kernel(state(q, k, k, scale=scale), tile=Tile(), policy=PRECISIONS[name])
        signs.append(bool(np.signbit(run.row_max[0, 0, 0])))
    assert signs == [False, True, False]

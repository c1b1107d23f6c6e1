"""softmax_flash_v2 against NumPy doing the same steps with the same roundings, interleaved in one run.

Run ``pytest bench/bench_softmax.py``. Rates are score elements per second on one core, an update tile each
time: the operator called from a compiled loop, as the attention kernel calls it, and NumPy. The last one
times one call of the operator from Python.
"""

import functools
import time

import numpy as np
import pytest

import tilesim as ts

SHAPES = [(8, 512), (64, 512), (128, 1024)]
COMBINATIONS = {"half-half": (2, 2), "half-float": (2, 4), "float-float": (4, 4)}
TYPES = {2: np.float16, 4: np.float32}
ROUNDS = 9


def cast_round(x, itemsize):
    """Round float32 to half, ties away from zero, for numbers that are not negative."""
    if itemsize == 4:
        return x
    bits = x.view(np.int32)
    normal = ((bits + 0x1000) & ~0x1FFF).view(np.float32)
    scaled = x * np.float32(2.0**24)
    whole = np.trunc(scaled)
    subnormal = (whole + (scaled - whole >= 0.5)) * np.float32(2.0**-24)
    return np.where(bits < 0x38800000, subnormal, normal).astype(np.float16)


def tree8(x):
    x = x[..., 0::2] + x[..., 1::2]
    x = x[..., 0::2] + x[..., 1::2]
    return x[..., 0] + x[..., 1]


def ordered_sum(p):
    rows, columns = p.shape
    lanes = tree8(p[:, :512].reshape(rows, 64, 8))
    for base in range(512, columns, 64):
        lanes = lanes + p[:, base : base + 64]
    return tree8(tree8(lanes.reshape(rows, 8, 8)))


def numpy_softmax(src, in_sum, in_max, data, state):
    """Return dst, sum, max and exp_max of an update tile."""
    x = src.astype(np.float32)
    old_max, old_sum = in_max.astype(np.float32), in_sum.astype(np.float32)
    new_max = np.maximum(x.max(axis=1), old_max)
    p = np.exp(x - new_max[:, None])
    rescale = np.exp(old_max - new_max)
    new_sum = rescale * old_sum + ordered_sum(p)
    stored_max = new_max.astype(TYPES[state])
    return cast_round(p, data), cast_round(new_sum, state), stored_max, cast_round(rescale, data)


@functools.cache
def compiled_loop():
    from tilesim.kernels._jit import jit_entry
    from tilesim.kernels.operator import softmax_operator

    @jit_entry
    def loop(count, outputs, src, carried, shape, numerics, scratch, bounds):
        for _ in range(count):
            softmax_operator(outputs, src, carried, shape, True, False, numerics, scratch, bounds)

    return loop


def flat(array):
    return array.reshape(-1).view(np.uint16) if array.itemsize == 2 else array.reshape(-1)


@pytest.mark.parametrize("combination", COMBINATIONS)
@pytest.mark.parametrize("shape", SHAPES, ids=lambda shape: f"{shape[0]}x{shape[1]}")
def test_update_tile(benchmark, shape, combination):
    from tilesim.kernels.operator import ROWS, StoredShape, scratch_size
    from tilesim.kernels.rounding import FLOAT_KIND, HALF_KIND
    from tilesim.kernels.softmax import GENERIC_SUM, Numerics

    data, state = COMBINATIONS[combination]
    rows, columns = shape
    rng = np.random.default_rng(0)
    src = (3 * rng.standard_normal(shape)).astype(TYPES[data])
    in_max, in_sum = np.full(rows, 2.0, TYPES[state]), np.full(rows, 100.0, TYPES[state])
    dst, exp_max = np.empty_like(src), np.zeros(rows, TYPES[data])
    out_max, out_sum, tile_max = (np.zeros(rows, TYPES[state]) for _ in range(3))
    outputs = tuple(flat(x) for x in (dst, out_sum, out_max, exp_max, tile_max))
    kinds = {2: HALF_KIND, 4: FLOAT_KIND}
    numerics = Numerics(
        scale=np.float32(1.0),
        score_kind=FLOAT_KIND,
        data_kind=kinds[data],
        state_kind=kinds[state],
        sum_form=GENERIC_SUM,
        guard_empty=False,
    )
    stored = StoredShape(rows, columns, columns, 1, 1)
    scratch = np.empty(scratch_size(columns), np.float32), np.empty(2 * ROWS, np.int64)
    arguments = (outputs, flat(src), (flat(in_sum), flat(in_max)), stored, numerics, *scratch)
    loop, count = compiled_loop(), max(1, 2_000_000 // src.size)
    loop(1, *arguments)

    peer_s = []

    def peer():
        start = time.perf_counter()
        numpy_softmax(src, in_sum, in_max, data, state)
        peer_s.append(time.perf_counter() - start)

    benchmark.pedantic(
        loop, (count, *arguments), setup=lambda: [peer() for _ in range(5)] and None, rounds=ROUNDS
    )
    expected = numpy_softmax(src, in_sum, in_max, data, state)
    np.testing.assert_allclose(dst.astype(np.float32), expected[0].astype(np.float32), rtol=2e-3, atol=1e-7)
    np.testing.assert_allclose(out_sum.astype(np.float32), expected[1].astype(np.float32), rtol=2e-3)
    tile_s = benchmark.stats.stats.median / count
    benchmark.extra_info["elements_per_s"] = round(src.size / tile_s)
    benchmark.extra_info["times_numpy"] = round(float(np.median(peer_s)) / tile_s, 1)


def test_python_call(benchmark):
    src = np.zeros((8, 512), np.float16)
    dst, exp_max = np.empty_like(src), np.zeros((8, 16), np.float16)
    state_sum, state_max = np.ones((8, 8), np.float32), np.zeros((8, 8), np.float32)
    tiling = ts.softmax_flash_v2_tiling((8, 512), 2, 4, 18688, is_update=True, is_basic_block=True)

    def call():
        ts.softmax_flash_v2(
            dst, state_sum, state_max, src, exp_max, state_sum, state_max, tiling,
            is_update=True, is_basic_block=True,
        )  # fmt: skip

    call()
    benchmark.pedantic(call, rounds=ROUNDS, iterations=2000)
    benchmark.extra_info["call_us"] = round(benchmark.stats.stats.median * 1e6, 2)

"""Where the time of one score tile goes: QK, softmax, PV, accumulation and packing, on one core.

Run ``pytest bench/bench_breakdown.py``. Each part is the kernel's own code on 8 query rows and one tile of
512 keys, run over and over on data in cache; GFLOP/s of the products stand beside the peak of the machine.
"""

import machine
import numpy as np
import pytest

from tilesim import kernel_inputs
from tilesim.kernels import attention, packing, products, softmax
from tilesim.kernels._jit import jit_entry
from tilesim.kernels.plain_softmax import plain_softmax_tile
from tilesim.kernels.vector import PANEL_COLUMNS, STRIP_COLUMNS, padded_columns, padded_strips
from tilesim.precision import PRECISIONS
from tilesim.problem import read_problem
from tilesim.scratch import aligned
from tilesim.tile import Tile

KV_TILE, ROWS = 512, 8
PARTS = ("QK", "softmax", "PV", "packing of 512 keys")
POLICIES = ("float", "half-data-float-state", "bfloat16-data-float-state")


@jit_entry
def multiply(count, c, c_stride, a, a_stride, b, b_panel, strips, depth):
    for _ in range(count):
        products.multiply_strips(c, c_stride, a, a_stride, b, b_panel, 0, strips, depth)


@jit_entry
def softmax_tiles(count, scores, source, shape, start, stop, numerics, running, work_storage):
    work, exp_max, tile_max = softmax.cut_work(work_storage)
    state = softmax.RowState(running[0], running[1], exp_max, tile_max)
    for _ in range(count):
        for i in range(scores.size):
            scores[i] = source[i]
        if numerics.sum_form == softmax.PLAIN_SUM:
            plain_softmax_tile(scores, shape, start, stop, True, state, work)
        else:
            carried = state.max, state.sum
            softmax.softmax_tile(scores, shape, start, stop, True, numerics, carried, state, work)


@jit_entry
def pack(count, k, v, packed, kind):
    for _ in range(count):
        packing.pack_head(k, v, packed, 0, k.shape[0], kind)


def part(name, head_dim, policy):
    """Return a function of a repetition count, and the floating-point operations of one repetition."""
    rng = np.random.default_rng(0)
    x = np.ones((1, 1, 1, head_dim), np.float32)
    problem = read_problem(x, x, x, mask="full", window=None, scale=None, options={})
    numerics = kernel_inputs.numerics(Tile(), PRECISIONS[policy], problem)
    width, values_size = padded_strips(head_dim), KV_TILE * padded_columns(head_dim)
    stride = attention.strip_stride(KV_TILE, 4096)

    def numbers(size):
        array = aligned(size)
        array[:] = rng.standard_normal(size, np.float32)
        return array

    flops = 2 * ROWS * KV_TILE * head_dim
    if name == "QK":
        arguments = (
            numbers(ROWS * stride), stride, numbers(ROWS * head_dim), head_dim, numbers(KV_TILE * head_dim),
            head_dim * PANEL_COLUMNS, KV_TILE // STRIP_COLUMNS, head_dim,
        )  # fmt: skip
        return lambda count: multiply(count, *arguments), flops
    if name == "PV":
        arguments = (
            numbers(ROWS * width), width, numbers(ROWS * stride), stride, numbers(values_size),
            KV_TILE * PANEL_COLUMNS, width // STRIP_COLUMNS, KV_TILE,
        )  # fmt: skip
        return lambda count: multiply(count, *arguments), flops
    if name == "packing of 512 keys":
        k, v = (rng.standard_normal((KV_TILE, head_dim), np.float32) for _ in range(2))
        packed = packing.Packed(numbers(KV_TILE * head_dim), numbers(values_size), np.zeros(1, bool), 512)
        return lambda count: pack(count, k, v, packed, numerics.data_kind), 0
    source = numbers(ROWS * stride + 64)
    running = np.array([[0.0], [1.0]], np.float32).repeat(ROWS, 1)
    work = np.zeros(softmax.WORK_SIZE, np.float32)
    shape = softmax.TileShape(stride, ROWS, KV_TILE, KV_TILE)
    start, stop = np.zeros(ROWS, np.int64), np.full(ROWS, KV_TILE, np.int64)
    arguments = (source.copy(), source, shape, start, stop, numerics, running, work)
    return lambda count: softmax_tiles(count, *arguments), 0


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("name", PARTS)
def test_part(benchmark, name, head_dim, policy):
    run, flops = part(name, head_dim, policy)
    run(1)
    benchmark.pedantic(run, (1000,), rounds=9)
    tile_us = benchmark.stats.stats.median * 1e3
    benchmark.extra_info["us"] = round(tile_us, 3)
    if flops:
        benchmark.extra_info["gflops"] = round(flops / tile_us / 1e3, 1)


def test_peak(benchmark):
    benchmark.pedantic(machine.fma_peak(1), rounds=9)
    benchmark.extra_info["gflops"] = round(machine.PEAK_FLOPS / benchmark.stats.stats.median / 1e9, 1)

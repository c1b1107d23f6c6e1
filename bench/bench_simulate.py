"""Throughput of the kernel on five attention shapes: GFLOP/s and score tiles per second.

Run ``pytest bench/bench_simulate.py``. Useful floating-point operations only: a causal mask counts visible
pairs. Compilation happens before anything is timed. Every round is one call of the whole kernel, packing
included.
"""

import numpy as np
import pytest

import tilesim as ts
from tilesim.engine import warm_up

SHAPES = {
    "1x8x1024x128-causal": (1, 8, 1024, 128, "causal"),
    "1x8x1024x128-full": (1, 8, 1024, 128, "full"),
    "1x32x512x128-causal": (1, 32, 512, 128, "causal"),
    "1x4x4096x128-causal": (1, 4, 4096, 128, "causal"),
    "1x1x8192x64-full": (1, 1, 8192, 64, "full"),
}
POLICIES = ("float", "half-data-float-state", "half-data-half-state")
ROUNDS = 7


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("shape", SHAPES)
def test_attention(benchmark, shape, policy):
    batch, heads, seq, head_dim, mask = SHAPES[shape]
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((batch, heads, seq, head_dim)).astype(np.float32) for _ in range(3))
    warm_up()
    benchmark.pedantic(
        ts.attention, (q, k, v), {"mask": mask, "precision": policy}, rounds=ROUNDS, warmup_rounds=1
    )
    workload = ts.Workload(batch=batch, heads=heads, seq_q=seq, head_dim=head_dim, mask=mask)
    median_s = benchmark.stats.stats.median
    benchmark.extra_info["gflops"] = round(workload.useful_flops / median_s / 1e9, 1)
    benchmark.extra_info["score_tiles_per_s"] = round(ts.Tile().score_tiles(workload) / median_s)

"""How many device-time estimates a second one core gives: pytest bench/bench_estimate.py."""

import pytest

import tilesim as ts

WORKLOADS = {
    "default": ts.Workload(),
    "long": ts.Workload(heads=8, seq_q=16384),
    "many heads": ts.Workload(batch=32, heads=32),
}


@pytest.mark.parametrize("name", WORKLOADS)
def test_estimate(benchmark, name):
    case = (WORKLOADS[name], ts.Tile(), ts.PRECISIONS["half-data-float-state"], ts.platform("ascend910b4"))
    ts.estimate(*case)
    benchmark.pedantic(ts.estimate, case, rounds=9, iterations=50)
    benchmark.extra_info["estimates_per_s"] = round(1 / benchmark.stats.stats.median)

"""bench/bench_breakdown.py calls kernels' parts through entries of its own: all of them must still run."""

import bench_breakdown
import pytest


@pytest.mark.parametrize("policy", bench_breakdown.POLICIES)
@pytest.mark.parametrize("head_dim", [64, 80])
@pytest.mark.parametrize("name", bench_breakdown.PARTS)
def test_every_part_runs(name, head_dim, policy):
    run, flops = bench_breakdown.part(name, head_dim, policy)
    run(2)
    assert flops == (2 * 8 * 512 * head_dim if name in ("QK", "PV") else 0)

"""Modelled device time: published rows, cases worked out by hand, and what must hold for any launch."""

import dataclasses
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilesim as ts
from tilesim.errors import ConfigError
from tilesim.memory.budget import make_launch
from tilesim.memory.layout import REFERENCE_LAYOUT
from tilesim.platform import TIMING, VECTOR_INSTRUCTIONS
from tilesim.timing.device_time import prepare
from tilesim.timing.schedule import core_loads, partition, schedule

POLICY = "half-data-float-state"
CHIP = ts.platform("ascend910b4")
PUBLISHED = {(1, 32, 128, 128): 23.90, (1, 32, 1024, 128): 221.64, (1, 64, 512, 128): 137.60}


def chip(cube_cores=1, **figures):
    """A chip on which every start takes no time and every rate is beyond measure, but for `figures`."""
    free = {name: 1e30 if name.endswith(("_per_cycle", "_per_us")) else 0.0 for name in TIMING}
    free["clock_mhz"] = 1.0  # a cycle a microsecond
    vector = dict.fromkeys(VECTOR_INSTRUCTIONS, 1.0)
    return dataclasses.replace(
        CHIP,
        cube_cores=cube_cores,
        vector_cores=2 * cube_cores,
        timing=free | figures,
        vector_cycles=vector,
    )


@pytest.mark.parametrize("shape", PUBLISHED)
def test_published_times_are_met_within_five_percent(shape):
    batch, heads, seq, head_dim = shape
    workload = ts.Workload(batch=batch, heads=heads, seq_q=seq, head_dim=head_dim)
    got = ts.estimate(workload, ts.Tile(), POLICY, "ascend910b4").time_us
    assert abs(got / PUBLISHED[shape] - 1) < 0.05


def test_one_tile_by_hand():
    """16 queries and keys of 16 half elements: one task, one tile of 64 padded keys, 8 rows a vector core.

    QK: call 7; query 10 + 512/32 = 26, to 33; keys 10 + 2048/32 = 74, to 107; left 2 + 512/64 = 10, to 117;
    right 2 + 2048/64 = 34, to 151; cube 1 + 4 = 5, to 156; store 5 + 2048/64 = 37, to 193; flag 11: 204.
    Softmax: queue 3; score 20 + 1024/64 = 36, to 243; mask 36, to 279; queue, 282; scaling and mask
    2 x (4 + 2) = 12; generic 8 x 64, 21 instructions and 70 repeats: 112; to 406; queue, 409; out
    30 + 16 = 46, to 455; flag: 466.
    PV: call, 473; probabilities 74, to 547; values 74, to 621; left 34, right 34, to 689; cube 5, to 694;
    store 5 + 512/64 = 13, to 707; flag: 718.
    End: queue, 721; partial 20 + 256/64 = 24, to 745; queue, 748; copy 3; broadcast, cast and division
    3 + 3 + 10, to 767; queue, 770; out 30 + 4 = 34: 804.
    """
    device = chip(
        gm_to_l1_start_cycles=10, gm_to_l1_bytes_per_cycle=32, gm_to_ub_start_cycles=20,
        gm_to_ub_bytes_per_cycle=64, ub_to_gm_start_cycles=30, ub_to_gm_bytes_per_cycle=64,
        l0c_to_gm_start_cycles=5, l0c_to_gm_bytes_per_cycle=64, l1_to_l0_start_cycles=2,
        l1_to_l0a_bytes_per_cycle=64, l1_to_l0b_bytes_per_cycle=64, cube_start_cycles=1,
        half_cube_blocks_per_cycle=1, vector_dependent_cycles=2, queue_cycles=3, matmul_call_cycles=7,
        flag_cycles=11, launch_us=100,
    )  # fmt: skip
    workload = ts.Workload(heads=1, seq_q=16, head_dim=16, mask="full")
    got = ts.estimate(workload, ts.Tile(), POLICY, device)
    assert got.time_us == 100 + 804
    assert got.steps["softmax"] == (2, 2 * 124)  # once on each vector core
    assert got.busy_us["AIC.CUBE"] == 10
    assert got.stall_us["AIV0.VECTOR"]["data"] == 282 + (748 - 406)


def test_two_tiles_by_hand():
    """Only vector instructions take time, one cycle a repeat: two tiles of 8 x 512 on each vector core.

    Scaling 2 x 32; softmax 404 and 414 repeats; first product 8 x 64 halves: copy 4; then multiply 8, add 4;
    normalise: broadcast 1, cast 1, division 8.
    """
    workload = ts.Workload(heads=1, seq_q=16, seq_kv=1024, head_dim=64, mask="full")
    got = ts.estimate(workload, ts.Tile(), POLICY, chip())
    assert got.time_us == 64 + 404 + 414 + 4 + 12 + 10
    assert got.bound == "AIV0.VECTOR"


def test_single_buffers_serialise_and_double_buffers_overlap():
    """4 groups of 500 to copy in and 436 to work on: in turn with one buffer, beside each other with two."""
    device = chip(gm_to_ub_start_cycles=500)
    workload = ts.Workload(heads=1, seq_q=64, seq_kv=512, head_dim=64, mask="full")
    one = ts.estimate(workload, ts.Tile(), POLICY, device).time_us
    layout = dataclasses.replace(REFERENCE_LAYOUT, score_buffers=2)
    two = ts.estimate(workload, ts.Tile(), POLICY, device, layout=layout).time_us
    # The product: 500 to copy in, 16 to copy, then broadcast and cast 4 + 4 and a division of 32 rows.
    assert one == 4 * (500 + 436) + 500 + 16 + 4 + 4 + 32
    assert one - two == 3 * 436


def test_the_flags_are_waited_for_one_after_the_other():
    got = ts.estimate(
        ts.Workload(heads=1, seq_q=16, seq_kv=512, mask="full"), ts.Tile(), POLICY, chip(flag_cycles=1000)
    )
    # QK_READY, PROB_READY and PV_READY; nobody waits for the last PV_DONE.
    vector = got.busy_us["AIV0.VECTOR"]
    assert got.time_us == 3000 + vector


def literal_partition(weights, cores):
    """The reference rule, task by task."""
    total, running, core = sum(weights), 0, 1
    owners = []
    for weight in weights:
        while core < cores and running + weight > total * core // cores:
            core += 1
        owners.append(core - 1)
        running += weight
    return owners


@given(st.lists(st.integers(1, 50), min_size=1, max_size=60), st.integers(1, 24))
def test_partition_is_the_reference_rule(weights, cores):
    cores = min(cores, len(weights))
    bounds = partition(np.array(weights, np.int64), cores)
    owners = [core for core in range(cores) for _ in range(bounds[core], bounds[core + 1])]
    assert owners == literal_partition(weights, cores)


def test_tasks_see_what_the_mask_lets_them():
    launch = make_launch(
        ts.Workload(heads=32, seq_q=1024), ts.Tile(), ts.PRECISIONS[POLICY], CHIP, REFERENCE_LAYOUT
    )
    plan = schedule(launch)
    blocks = plan.chunks
    assert [block.columns for block in blocks] == [(256,), (512,), (512, 256), (512, 512)]
    assert [block.masked for block in blocks] == [(True,), (True,), (False, True), (False, True)]
    loads = core_loads(launch, plan)
    assert sum(load.tasks * len(load.cores) for load in loads) == 128
    assert sorted(core for load in loads for core in load.cores) == list(range(20))


WORKLOADS = st.builds(
    ts.Workload,
    batch=st.integers(1, 2),
    heads=st.integers(1, 12),
    seq_q=st.integers(1, 1500),
    seq_kv=st.one_of(st.none(), st.integers(1, 1500)),
    head_dim=st.sampled_from([16, 64, 100, 128]),
    mask=st.sampled_from(["causal", "full"]),
)
TILES = st.builds(
    ts.Tile,
    softmax_rows=st.sampled_from([1, 5, 8, 16]),
    kv_tile=st.sampled_from([64, 100, 512, 1024]),
    slots=st.integers(1, 3),
)
POLICIES = st.sampled_from(list(ts.PRECISIONS))


@settings(max_examples=60)
@given(WORKLOADS, TILES, POLICIES)
def test_time_is_never_below_the_roofline_and_lanes_add_up(workload, tile, policy):
    got = ts.estimate(workload, tile, policy, CHIP)
    assert got.time_us >= got.roofline.time_us
    assert got.executed_flops >= got.useful_flops
    assert 0 < got.balance <= 1
    end_us = max(got.core_us)
    for lane, busy_us in got.busy_us.items():
        # A lane works or waits until its last operation ends, never longer than the core.
        assert busy_us + sum(got.stall_us[lane].values()) <= end_us * (1 + 1e-12)
    assert math.isclose(sum(time for _, time in got.steps.values()), sum(got.busy_us.values()), rel_tol=1e-9)


@settings(max_examples=60)
@given(WORKLOADS, TILES, POLICIES, st.sampled_from(TIMING), st.floats(1.1, 4.0))
def test_better_figures_never_make_it_slower(workload, tile, policy, figure, factor):
    better = figure.endswith(("_per_cycle", "_per_us", "_mhz"))
    value = CHIP.timing[figure] * (factor if better else 1 / factor)
    faster = dataclasses.replace(CHIP, timing={**CHIP.timing, figure: value})
    before = ts.estimate(workload, tile, policy, CHIP).time_us
    assert ts.estimate(workload, tile, policy, faster).time_us <= before * (1 + 1e-12)


@settings(max_examples=40)
@given(st.integers(1, 6), st.integers(1, 300), st.integers(2, 6), st.integers(1, 6))
def test_more_keys_never_make_it_faster(heads, seq_q, tiles, more):
    one = dataclasses.replace(CHIP, cube_cores=1, vector_cores=2)
    times = [
        ts.estimate(
            ts.Workload(heads=heads, seq_q=seq_q, seq_kv=512 * count, mask="full"),
            ts.Tile(query_rows=64),
            POLICY,
            one,
        ).time_us
        for count in (tiles, tiles + more)
    ]
    assert times[0] < times[1]


@pytest.mark.parametrize("cores", [4, 8, 16, 20])
def test_more_cores_never_make_it_slower(cores):
    workload, tile = ts.Workload(heads=40, seq_q=2048), ts.Tile(query_rows=128)
    few, many = (
        ts.estimate(
            workload, tile, POLICY, dataclasses.replace(CHIP, cube_cores=n, vector_cores=2 * n)
        ).time_us
        for n in (cores, 2 * cores)
    )
    assert many <= few


def test_twice_the_heads_on_full_cores_take_twice_as_long():
    times = [
        ts.estimate(ts.Workload(heads=heads, seq_q=2048), ts.Tile(), POLICY, CHIP) for heads in (80, 160)
    ]
    one, two = (time.time_us - time.launch_us for time in times)
    assert two / one == pytest.approx(2, rel=0.01)


def test_bandwidth_of_the_chip_can_be_what_bounds():
    slow = dataclasses.replace(CHIP, timing={**CHIP.timing, "l2_bytes_per_us": 1e5})
    got = ts.estimate(ts.Workload(), ts.Tile(), POLICY, slow)
    assert got.bound == "L2"
    assert got.time_us == got.launch_us + got.roofline.l2_us


@pytest.mark.parametrize("name", ts.platforms())
def test_every_platform_gives_a_time_and_names_its_sources(name):
    platform = ts.platform(name)
    assert platform.has_timing
    assert ts.estimate(ts.Workload(), ts.Tile(), POLICY, name).time_us > 0
    fitted = [key for key, figure in platform.figures.items() if figure.fitted]
    assert len(fitted) <= 4
    assert all(len(platform.figures[key].source) > 20 for key in fitted)


def test_document_has_the_promised_keys():
    document = ts.estimate(ts.Workload(), ts.Tile(), POLICY, CHIP).to_dict()
    assert {"time_us", "bound", "pipes"} <= set(document)
    assert set(document["pipes"]) == {"CUBE", "VECTOR", "SCALAR", "MTE1", "MTE2", "MTE3", "FIXP"}


def test_a_platform_without_timing_is_refused_but_still_simulates():
    plain = dataclasses.replace(CHIP, timing={}, vector_cycles={})
    with pytest.raises(ConfigError, match="timing"):
        ts.estimate(ts.Workload(), ts.Tile(), POLICY, plain)
    x = np.ones((1, 1, 8, 8), np.float16)
    assert ts.simulate(x, x, x, platform=plain).device is None
    assert ts.simulate(x, x, x, platform=CHIP).device.time_us > 0


@settings(max_examples=30)
@given(
    st.integers(60, 400),
    st.integers(1, 1300),
    st.sampled_from([64, 128]),
    st.integers(1, 3),
    st.integers(1, 4),
)
def test_heads_that_repeat_are_multiplied_out_exactly(heads, seq, head_dim, slots, cores):
    platform = dataclasses.replace(CHIP, cube_cores=cores, vector_cores=2 * cores)
    workload = ts.Workload(heads=heads, seq_q=seq, head_dim=head_dim)
    timing = prepare(workload, ts.Tile(slots=slots), POLICY, platform, REFERENCE_LAYOUT)
    for load in timing.loads:
        end, core = timing.run(load)
        exact, wanted = timing.run_tasks(load.first, load.tasks)
        assert end == pytest.approx(exact, rel=1e-9)
        np.testing.assert_allclose(core.busy, wanted.busy, rtol=1e-9)
        np.testing.assert_allclose(core.stall, wanted.stall, rtol=1e-6, atol=1e-6 * exact)
        np.testing.assert_allclose(core.work, wanted.work, rtol=1e-9)

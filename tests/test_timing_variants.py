"""Budget and device time of variants: hidden tiles cost nothing, what is added costs what is documented."""

import dataclasses
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilesim as ts
from tilesim.memory.budget import make_launch
from tilesim.memory.layout import REFERENCE_LAYOUT
from tilesim.platform import TIMING, VECTOR_INSTRUCTIONS
from tilesim.timing.device_time import prepare
from tilesim.timing.schedule import FULL, PARTIAL, schedule
from tilesim.trace import chrome_trace

POLICY = "half-data-float-state"
CHIP = ts.platform("ascend910b4")
ONE_CORE = dataclasses.replace(CHIP, cube_cores=1, vector_cores=2)


def time_us(tile=None, chip=CHIP, **fields):
    return ts.estimate(ts.Workload(**fields), tile or ts.Tile(), POLICY, chip).time_us


def used_bytes(tile=None, policy=POLICY, **fields):
    return ts.budget(ts.Workload(**fields), tile or ts.Tile(), policy, CHIP).used_bytes


@st.composite
def banded(draw):
    batch, seq_kv = draw(st.integers(1, 3)), 64 * draw(st.integers(1, 20))
    lengths = draw(st.none() | st.tuples(*[st.integers(0, seq_kv // 64)] * batch))
    window = draw(st.none() | st.tuples(st.integers(0, 300), st.integers(0, 300)))
    return ts.Workload(
        batch=batch,
        heads=draw(st.integers(1, 3)),
        seq_q=32 * draw(st.integers(1, 30)),
        seq_kv=seq_kv,
        head_dim=16,
        mask="window" if window else draw(st.sampled_from(["causal", "full"])),
        window=window,
        align=draw(st.sampled_from(["bottom-right", "top-left"])),
        key_lengths=None if lengths is None else tuple(64 * length for length in lengths),
    )


TILES = st.builds(
    ts.Tile,
    softmax_rows=st.sampled_from([8, 16]),
    kv_tile=st.sampled_from([64, 128, 512]),
    query_rows=st.sampled_from([32, 64, 128]),
    kv_splits=st.integers(1, 4),
)


@settings(max_examples=60, deadline=None)
@given(banded(), TILES)
def test_score_tiles_of_the_schedule_are_those_that_are_counted(workload, tile):
    """Sizes are such that no keys are padded, and row groups of vector cores those of the whole head."""
    launch = make_launch(workload, tile, ts.PRECISIONS[POLICY], CHIP, REFERENCE_LAYOUT)
    plan = schedule(launch)
    counts = tile.counts(workload)
    runs = np.bincount(plan.order, minlength=len(plan.chunks))
    full, partial = (
        sum(int((chunk.kinds == kind).sum() * times) for chunk, times in zip(plan.chunks, runs, strict=True))
        for kind in (FULL, PARTIAL)
    )
    assert full + partial == counts.visited
    # A tile that only a length cuts is clipped to it, and needs no mask.
    assert partial <= counts.partial if workload.key_lengths else partial == counts.partial
    got = ts.estimate(workload, tile, POLICY, ONE_CORE)
    assert got.steps.get("softmax", (0, 0))[0] == counts.visited
    assert got.steps.get("copy mask in", (0, 0))[0] == partial
    assert got.executed_flops >= got.useful_flops
    assert got.time_us >= got.roofline.time_us


def test_keys_that_nobody_sees_cost_nothing():
    assert time_us(seq_q=1024, seq_kv=4096, align="top-left") == time_us(seq_q=1024)
    # A window of 512 keys reads what it sees of 64 times as many.
    seen, all_keys = (
        ts.estimate(
            ts.Workload(heads=1, seq_q=8, seq_kv=keys, mask="window", window=500), ts.Tile(), POLICY, CHIP
        )
        for keys in (1024, 65536)
    )
    assert all_keys.time_us == seen.time_us
    assert time_us(batch=3, seq_q=512, key_lengths=(512, 0, 0)) == time_us(batch=1, seq_q=512)


def test_shorter_lengths_take_less_time():
    sizes = {"batch": 3, "heads": 4, "seq_q": 128, "seq_kv": 1024, "mask": "full"}
    lengths = ((1024, 1024, 1024), (1024, 512, 1024), (512, 512, 1024), (512, 512, 512), (0, 0, 0))
    times = [time_us(chip=ONE_CORE, key_lengths=each, **sizes) for each in lengths]
    assert times[0] == time_us(chip=ONE_CORE, **sizes)
    assert times == sorted(times, reverse=True)
    assert len(set(times)) == len(times)


@pytest.mark.parametrize("heads", [1, 3, 9])
def test_batches_of_different_lengths_are_run_task_by_task(heads):
    workload = ts.Workload(batch=3, heads=heads, seq_q=96, seq_kv=640, key_lengths=(640, 100, 300))
    timing = prepare(workload, ts.Tile(query_rows=32, kv_tile=128), POLICY, ONE_CORE, REFERENCE_LAYOUT)
    (load,) = timing.loads
    assert load.tasks == 9 * heads
    assert timing.run(load)[0] == pytest.approx(timing.run_tasks(load.first, load.tasks)[0], rel=1e-9)


def test_a_mask_is_charged_where_it_is_read():
    """As many softmax calls either way; with a tensor of unknown content all of them read the mask."""
    plain, masked = (
        ts.estimate(ts.Workload(attn_mask=kind), ts.Tile(), POLICY, CHIP) for kind in (None, "bool")
    )
    assert plain.steps["softmax"][0] == masked.steps["softmax"][0] == masked.steps["copy mask in"][0]
    assert plain.steps["copy mask in"][0] < masked.steps["copy mask in"][0]
    assert masked.time_us > plain.time_us


@pytest.mark.parametrize("kind", [bool, np.float16])
def test_tiles_that_a_mask_hides_cost_nothing(kind):
    x = np.ones((1, 2, 512, 16), np.float16)
    shown = np.zeros((512, 512), bool)
    shown[:, :128] = True
    mask = shown if kind is bool else np.where(shown, 0, -np.inf).astype(kind)
    tile = ts.Tile(kv_tile=128)
    hidden = ts.simulate(x, x, x, mask=mask, tile=tile, compare=()).device
    short = ts.Workload(heads=2, seq_q=512, seq_kv=512, head_dim=16, mask="full", key_lengths=(128,))
    bare = ts.estimate(short, tile, POLICY, CHIP)
    if kind is bool:
        assert hidden.time_us == bare.time_us
        assert hidden.gm_bytes == bare.gm_bytes
    else:
        assert hidden.steps["copy mask in"][0] == hidden.steps["softmax"][0]
    assert hidden.executed_flops == bare.executed_flops
    assert hidden.useful_flops == 2 * 2 * 512 * 128 * 32


@pytest.mark.parametrize("option", [{"softcap": 30.0}, {"alibi": True}, {"sinks": True}])
def test_what_is_done_to_scores_takes_vector_time_and_room(option):
    assert time_us(**option) > time_us()
    assert used_bytes(**option) > used_bytes()
    assert time_us(seq_q=8, seq_kv=0, **option) == time_us(seq_q=8, seq_kv=0)


def test_room_of_variants_by_hand():
    plain = used_bytes(seq_q=4096)
    assert plain == 137_472
    # Scores widened to float, and the numerator: two tiles of 8 x 512 floats; none to widen in float.
    assert used_bytes(seq_q=4096, softcap=30.0) == plain + 2 * 16_384
    floats = {"policy": "float-data-float-state", "seq_q": 4096}
    assert used_bytes(**floats, softcap=30.0) == used_bytes(**floats) + 16_384
    # Distances and bias of a tile, in float.
    assert used_bytes(seq_q=4096, alibi=True) == plain + 2 * 16_384
    assert used_bytes(seq_q=4096, sinks=True) == plain + 32 * 4
    # A split's accumulator and the sum of them, 8 x 128 floats each, and four states of 8 blocks.
    assert used_bytes(ts.Tile(kv_splits=4), seq_q=4096) == plain + 2 * 4096 + 4 * 8 * 32
    # All keys in one tile: nothing to split.
    assert used_bytes(ts.Tile(kv_splits=4), seq_q=128) == 73_984


def test_splits_in_gm_by_hand():
    workload, tile = ts.Workload(batch=2, heads=4, seq_q=3, seq_kv=4096), ts.Tile(kv_splits=4)
    gm = {buffer.name: buffer for buffer in ts.budget(workload, tile, POLICY, CHIP).memories["GM"].buffers}
    assert gm["split accumulator"].total_bytes == 4 * 24 * 128 * 4
    assert gm["split state"].total_bytes == 4 * 2 * 24 * 32


@pytest.mark.parametrize("seq_q", [1, 16])
def test_splits_let_more_cores_decode(seq_q):
    decode = {"heads": 2, "seq_q": seq_q, "seq_kv": 16_384}
    times = {splits: time_us(ts.Tile(kv_splits=splits), **decode) for splits in (1, 2, 4, 8)}
    assert list(times.values()) == sorted(times.values(), reverse=True)
    got = ts.estimate(ts.Workload(**decode), ts.Tile(kv_splits=4), POLICY, CHIP)
    assert len(got.core_us) == 8
    assert got.steps["load split"][0] == got.steps["combine split"][0] == 2 * 4


def test_combination_by_hand():
    """One row in two splits; flags and vector instructions alone take time, a cycle a repeat.

    Each split: Max, Sub, Exp, Mul, Add of the state 1 each, Mul of two blocks of 64 lanes 1 each, Add of 128
    floats 2: 9. Then Div 1 for each block, and a cast of 2. All that is 1,000 cycles after the slower split.
    """
    free = {name: 1e30 if name.endswith(("_per_cycle", "_per_us")) else 0.0 for name in TIMING}
    chip = dataclasses.replace(
        CHIP,
        timing=free | {"clock_mhz": 1.0, "flag_cycles": 1000.0},
        vector_cycles=dict.fromkeys(VECTOR_INSTRUCTIONS, 1.0),
    )
    workload, tile = ts.Workload(heads=1, seq_q=1, seq_kv=2048, mask="full"), ts.Tile(kv_splits=2)
    timing = prepare(workload, tile, POLICY, chip, REFERENCE_LAYOUT)
    split = max(timing.run(load)[0] for load in timing.loads)
    got = ts.estimate(workload, tile, POLICY, chip)
    assert got.time_us == split + 1000 + 2 * 9 + 4
    # Both vector cores of the core have an output row; the split itself ended on one, with a cast of 2.
    assert got.steps["combine split"] == (4, 4 * 9)
    assert got.steps["normalise"] == (3, 2 + 2 * 4)


def test_timeline_and_trace_show_the_combination():
    workload, tile = ts.Workload(heads=2, seq_q=1, seq_kv=4096), ts.Tile(kv_splits=4)
    lines = ts.timeline(workload, tile, POLICY, CHIP)
    assert sum(event.name == "load split" for event in lines.events) == 2 * 4
    assert max(event.end_us for event in lines.events) == pytest.approx(lines.device_time.time_us)
    json.dumps(chrome_trace(lines, ts.budget(workload, tile, POLICY, CHIP)), allow_nan=False)


EMPTY = {
    "no batch": {"batch": 0},
    "no queries": {"seq_q": 0, "seq_kv": 512},
    "no keys": {"seq_q": 16, "seq_kv": 0},
    "no depth": {"seq_q": 16, "head_dim": 0, "head_dim_v": 64},
    "no width": {"seq_q": 16, "head_dim_v": 0},
}


@pytest.mark.parametrize("name", EMPTY)
@pytest.mark.parametrize("splits", [1, 3])
def test_empty_sizes_have_no_work_and_no_division_by_zero(name, splits):
    workload, tile = ts.Workload(heads=2, **EMPTY[name]), ts.Tile(kv_splits=splits, kv_tile=16)
    plan = ts.budget(workload, tile, POLICY, CHIP)
    device = ts.estimate(workload, tile, POLICY, CHIP)
    json.dumps([plan.to_dict(), device.to_dict()], allow_nan=False)
    ts.timeline(workload, tile, POLICY, CHIP)
    queries, keys = (workload.batch, 2, workload.seq_q), (workload.batch, 2, workload.seq_kv)
    q, k, v = (
        np.ones(shape, np.float16)
        for shape in ((*queries, workload.head_dim), (*keys, workload.head_dim), (*keys, workload.head_dim_v))
    )
    result = ts.simulate(q, k, v, tile=tile, scale=1.0)
    json.dumps(result.to_dict(), allow_nan=False)
    assert result.output.shape == (*queries, workload.head_dim_v)
    if name.startswith(("no batch", "no queries", "no keys")):
        assert result.tiles.visited == device.useful_flops == device.executed_flops == 0
        assert device.tflops == result.throughput.gflops == result.throughput.score_tiles_per_s == 0
        assert device.time_us == pytest.approx(device.launch_us, rel=1e-2)
        assert result.output.sum() == 0

"""Tiles of mask tensors against a walk over every pair."""

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilesim as ts
from tilesim.mask_tiles import MaskTiles
from tilesim.problem import read_problem

POLICY = ts.PRECISIONS["half-data-float-state"]


def mask_tiles(workload, mask, tile, policy=POLICY, **options):
    queries = (workload.batch, workload.heads, workload.seq_q, 4)
    keys = (workload.batch, workload.heads, workload.seq_kv, 4)
    q, k = np.zeros(queries, np.float16), np.zeros(keys, np.float16)
    options |= {"attn_mask": mask, "align": workload.align, "key_lengths": workload.key_lengths}
    problem = read_problem(q, k, k, mask=workload.mask, window=workload.window, scale=1.0, options=options)
    return MaskTiles(problem, policy, tile)


@st.composite
def masked(draw):
    batch, heads = draw(st.integers(1, 2)), draw(st.integers(1, 3))
    seq_q, seq_kv = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    workload = ts.Workload(
        batch=batch,
        heads=heads,
        seq_q=seq_q,
        seq_kv=seq_kv,
        mask=draw(st.sampled_from(["causal", "full"])),
        align=draw(st.sampled_from(["bottom-right", "top-left"])),
        key_lengths=draw(st.none() | st.tuples(*[st.integers(0, seq_kv)] * batch)),
    )
    shape = [draw(st.sampled_from([1, size])) for size in (batch, heads, seq_q, seq_kv)]
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    # Blocks, so that whole tiles come out hidden or shown.
    blocks = rng.random([*shape[:2], -(-shape[2] // 6), -(-shape[3] // 6)]) < draw(st.floats(0, 1))
    shown = blocks.repeat(6, axis=2).repeat(6, axis=3)[:, :, : shape[2], : shape[3]]
    noise = rng.random(shape) < draw(st.sampled_from([0.0, 0.05]))
    return workload, shown ^ noise


@settings(max_examples=80, deadline=None)
@given(
    masked(),
    st.integers(1, 12),
    st.integers(1, 12),
    st.sampled_from([np.bool_, np.float16, np.float32, np.float64, ml_dtypes.bfloat16]),
)
def test_tiles_agree_with_a_walk_over_every_pair(problem, rows, kv_tile, dtype):
    workload, shown = problem
    additive = dtype is not np.bool_
    mask = np.where(shown, 0.5, -np.inf).astype(dtype) if additive else shown
    own = np.arange(workload.seq_q)[:, None]
    key = np.arange(workload.seq_kv)
    full = partial = skipped = pairs = 0
    for element, length in enumerate(workload.lengths):
        shift = length - workload.seq_q if workload.align == "bottom-right" else 0
        band = (key < length) & ((workload.mask == "full") | (key <= own + shift))
        for head in range(workload.heads):
            planes = np.broadcast_to(shown, (workload.batch, workload.heads, workload.seq_q, workload.seq_kv))
            visible = planes[element, head] & band
            pairs += visible.sum()
            for top in range(0, workload.seq_q, rows):
                for low in range(0, workload.seq_kv, kv_tile):
                    tile = visible[top : top + rows, low : low + kv_tile]
                    whole = tile.all() and not additive
                    full, skipped = full + whole, skipped + (not tile.any())
                    partial += tile.any() and not whole
    got = mask_tiles(workload, mask, ts.Tile(softmax_rows=rows, kv_tile=kv_tile))
    assert (got.counts.full, got.counts.partial, got.counts.skipped) == (full, partial, skipped)
    assert got.visible_pairs == pairs


def test_an_additive_mask_counts_as_rounded_to_the_data_type():
    workload = ts.Workload(heads=1, seq_q=8, seq_kv=16, mask="full")
    mask = np.zeros((8, 16), np.float32)
    mask[:, :8] = -70000.0  # -inf in half, finite in float
    tile = ts.Tile(softmax_rows=8, kv_tile=8)
    assert mask_tiles(workload, mask, tile).counts.skipped == 1
    assert mask_tiles(workload, mask, tile, ts.PRECISIONS["float"]).counts.skipped == 0


def test_a_simulation_counts_what_the_mask_shows():
    x = np.ones((1, 2, 64, 16), np.float16)
    mask = np.zeros((64, 64), bool)
    mask[:, :16], mask[:8, 16:20] = True, True
    got = ts.simulate(x, x, x, mask=mask, tile=ts.Tile(softmax_rows=8, kv_tile=16))
    assert got.tiles == ts.TileCounts(full=16, partial=2, skipped=46)
    assert got.throughput.score_tiles == 18
    assert got.throughput.gflops * got.throughput.wall_s * 1e9 == pytest.approx(
        2 * 2 * (64 * 16 + 32) * (16 + 16)
    )
    assert got.device.useful_flops == 2 * 2 * (64 * 16 + 32) * (16 + 16)
    assert got.to_dict()["tiles"] == {"full": 16, "partial": 2, "skipped": 46}
    assert got.device.steps["copy mask in"][0] == 1  # a head a core
    assert got.device.steps["softmax"][0] == 9

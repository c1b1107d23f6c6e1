import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import tilesim as ts

CUBE_CORES = 20


def workload(**fields):
    return ts.Workload(**{"batch": 1, "heads": 1, "head_dim": 16, **fields})


def test_defaults_are_the_reference_kernel():
    tile = ts.Tile()
    assert (tile.softmax_rows, tile.kv_tile, tile.query_rows, tile.slots) == (8, 512, None, 2)


@pytest.mark.parametrize("field", ["softmax_rows", "kv_tile", "query_rows", "slots"])
@pytest.mark.parametrize("value", [0, -8, 2.5, "8", False])
def test_sizes_are_positive_integers(field, value):
    with pytest.raises(ts.ConfigError, match=f"Tile.{field}: got {value!r}"):
        ts.Tile(**{field: value})


@pytest.mark.parametrize(
    ("shape", "rows"),
    [
        ((1, 32, 128), 128),
        ((1, 32, 1024), 256),
        ((1, 64, 512), 128),
        ((1, 1, 1024), 128),
        ((1, 8, 1024), 256),
        ((1, 10, 1040), 256),
        ((1, 1, 4096), 208),
        ((2, 5, 5000), 256),
        ((1, 1, 40), 40),
    ],
)
def test_reference_rule_for_query_rows(shape, rows):
    batch, heads, seq = shape
    assert ts.Tile().resolve_query_rows(workload(batch=batch, heads=heads, seq_q=seq), CUBE_CORES) == rows


def test_given_query_rows_win_but_never_exceed_the_queries():
    assert ts.Tile(query_rows=64).resolve_query_rows(workload(seq_q=1024), CUBE_CORES) == 64
    assert ts.Tile(query_rows=64).resolve_query_rows(workload(seq_q=10), CUBE_CORES) == 10


@pytest.mark.parametrize(
    ("tile", "fields", "visits"),
    [
        (ts.Tile(), {"seq_q": 1032}, 195),
        (ts.Tile(), {"seq_q": 1032, "mask": "full"}, 387),
        (ts.Tile(), {"seq_q": 1024}, 192),
        (ts.Tile(softmax_rows=64, kv_tile=32), {"seq_q": 64}, 2),
        (ts.Tile(softmax_rows=32, kv_tile=64), {"seq_q": 64}, 2),
        (ts.Tile(), {"seq_q": 8, "seq_kv": 1030}, 3),
        (ts.Tile(), {"seq_q": 24, "seq_kv": 8}, 1),
        (ts.Tile(), {"batch": 2, "heads": 3, "seq_q": 1024}, 6 * 192),
    ],
)
def test_score_tiles_that_hold_a_visible_pair(tile, fields, visits):
    assert tile.score_tiles(workload(**fields)) == visits


@pytest.mark.parametrize(
    ("tile", "fields", "counts"),
    [
        # 32 groups end in each tile of the diagonal before the last group, which sees all of it.
        (ts.Tile(), {"seq_q": 1024}, (64, 128, 64)),
        (ts.Tile(), {"seq_q": 1032, "mask": "full"}, (387, 0, 0)),
        (ts.Tile(softmax_rows=32, kv_tile=64), {"seq_q": 64}, (0, 2, 0)),
        (ts.Tile(), {"seq_q": 24, "seq_kv": 8}, (0, 1, 2)),
        (ts.Tile(), {"seq_q": 8, "seq_kv": 1030}, (1, 2, 0)),
        (
            ts.Tile(),
            {"batch": 2, "seq_q": 8, "seq_kv": 1024, "mask": "full", "key_lengths": (512, 0)},
            (1, 0, 3),
        ),
        (ts.Tile(), {"seq_q": 8, "seq_kv": 1024, "mask": "full", "key_lengths": (500,)}, (0, 1, 1)),
        (ts.Tile(), {"seq_q": 1024, "attn_mask": "bool"}, (0, 192, 64)),
        (ts.Tile(), {"seq_q": 0, "seq_kv": 512}, (0, 0, 0)),
        (ts.Tile(), {"seq_q": 16, "seq_kv": 0}, (0, 0, 0)),
        (ts.Tile(), {"batch": 0}, (0, 0, 0)),
    ],
)
def test_tiles_by_what_they_hold(tile, fields, counts):
    got = tile.counts(workload(**fields))
    assert (got.full, got.partial, got.skipped) == counts
    assert got.total == sum(counts)
    assert got.visited == tile.score_tiles(workload(**fields))


@pytest.mark.parametrize(
    ("seq_q", "seq_kv", "align", "flops"),
    [
        (1024, 1024, "bottom-right", 268_697_600),
        (1024, 1024, "top-left", 268_697_600),
        (1024, 4096, "top-left", 268_697_600),
        (1024, 4096, "bottom-right", 1_879_310_336),
        (4096, 1024, "top-left", 1_879_310_336),
        (4096, 1024, "bottom-right", 268_697_600),
        (1, 4096, "top-left", 512),
        (1, 4096, "bottom-right", 2_097_152),
    ],
)
def test_useful_flops_of_both_alignments(seq_q, seq_kv, align, flops):
    assert workload(head_dim=128, seq_q=seq_q, seq_kv=seq_kv, align=align).useful_flops == flops


@st.composite
def banded(draw):
    seq_kv, batch = draw(st.integers(0, 60)), draw(st.integers(1, 3))
    window = draw(st.none() | st.tuples(st.none() | st.integers(0, 20), st.none() | st.integers(0, 20)))
    lengths = draw(st.none() | st.tuples(*[st.integers(0, seq_kv)] * batch))
    return workload(
        batch=batch,
        heads=draw(st.integers(1, 2)),
        seq_q=draw(st.integers(0, 60)),
        seq_kv=seq_kv,
        mask="window" if window else draw(st.sampled_from(["causal", "full"])),
        window=window,
        align=draw(st.sampled_from(["bottom-right", "top-left"])),
        key_lengths=lengths,
    )


def shown(w):
    """Which pairs the named mask and the lengths show, from their definition: (batch, seq_q, seq_kv)."""
    left, right = {"causal": (None, 0), "full": (None, None)}.get(w.mask, w.window)
    key, row = np.arange(w.seq_kv), np.arange(w.seq_q)[:, None]
    planes = []
    for length in w.lengths:
        own = row + (length - w.seq_q if w.align == "bottom-right" else 0)
        plane = (key < length) & (left is None or key >= own - left) & (right is None or key <= own + right)
        planes.append(np.broadcast_to(plane, (w.seq_q, w.seq_kv)))
    return np.array(planes)


@given(w=banded(), rows=st.integers(1, 20), kv_tile=st.integers(1, 30))
def test_counts_agree_with_a_walk_over_every_pair(w, rows, kv_tile):
    visible = shown(w)
    assert w.visible_pairs == w.heads * visible.sum()
    full = partial = skipped = keys = 0
    for plane, length in zip(visible, w.lengths, strict=True):
        for top in range(0, w.seq_q, rows):
            group = plane[top : top + rows]
            for low in range(0, w.seq_kv, kv_tile):
                tile = group[:, low : low + kv_tile]
                full += tile.all()
                partial += tile.any() and not tile.all()
                skipped += not tile.any()
                keys += (min(low + kv_tile, length) - low) * tile.any()
    got = ts.Tile(softmax_rows=rows, kv_tile=kv_tile).counts(w)
    assert (got.full, got.partial, got.skipped) == tuple(w.heads * n for n in (full, partial, skipped))
    assert ts.Tile(kv_tile=kv_tile).streamed_keys(w, rows) == w.heads * keys

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


@given(
    seq_q=st.integers(1, 60),
    seq_kv=st.integers(1, 60),
    rows=st.integers(1, 20),
    kv_tile=st.integers(1, 30),
    mask=st.sampled_from(["causal", "full", "window"]),
    window=st.tuples(st.integers(0, 20), st.integers(0, 20)),
)
def test_counts_agree_with_a_walk_over_every_pair(seq_q, seq_kv, rows, kv_tile, mask, window):
    w = workload(seq_q=seq_q, seq_kv=seq_kv, mask=mask, window=window if mask == "window" else None)
    own = np.arange(seq_q)[:, None] + seq_kv - seq_q
    key = np.arange(seq_kv)[None, :]
    left, right = {"causal": (10**6, 0), "full": (10**6, 10**6), "window": window}[mask]
    visible = (key >= own - left) & (key <= own + right)
    assert w.visible_pairs == visible.sum()
    # A group streams whole tiles between the first and the last one it sees.
    tiles = keys = 0
    for top in range(0, seq_q, rows):
        seen = visible[top : top + rows].any(axis=0).nonzero()[0]
        if len(seen):
            first, last = seen[0] // kv_tile, seen[-1] // kv_tile
            tiles += last - first + 1
            keys += min((last + 1) * kv_tile, seq_kv) - first * kv_tile
    tile = ts.Tile(softmax_rows=rows, kv_tile=kv_tile)
    assert tile.score_tiles(w) == tiles
    assert tile.streamed_keys(w, rows) == keys

import dataclasses

import numpy as np
import pytest

import tilesim as ts


def test_defaults_follow_the_queries():
    w = ts.Workload(batch=2, heads=6, seq_q=100, head_dim=64)
    assert (w.kv_heads, w.seq_kv, w.head_dim_v, w.mask, w.window) == (6, 100, 64, "causal", None)


def test_frozen_and_keyword_only():
    with pytest.raises(TypeError):
        ts.Workload(1, 2)
    with pytest.raises(dataclasses.FrozenInstanceError):
        ts.Workload().heads = 3


@pytest.mark.parametrize("field", ["batch", "heads", "kv_heads", "seq_q", "seq_kv", "head_dim", "head_dim_v"])
@pytest.mark.parametrize("value", [-1, 1.0, "8", True, np.float32(3)])
def test_sizes_are_integers(field, value):
    with pytest.raises(ts.ConfigError) as error:
        ts.Workload(**{field: value})
    assert f"Workload.{field}" in str(error.value)
    assert repr(value) in str(error.value)
    assert f"integer >= {int(field.endswith('heads'))}" in str(error.value)


@pytest.mark.parametrize(("heads", "kv_heads"), [(6, 4), (2, 4)])
def test_heads_are_shared_evenly(heads, kv_heads):
    with pytest.raises(ts.ConfigError, match=f"kv_heads: got {kv_heads}.*heads, which is {heads}"):
        ts.Workload(heads=heads, kv_heads=kv_heads)


@pytest.mark.parametrize("options", [{"mask": "window"}, {"mask": "causal", "window": 3}, {"window": (1, 2)}])
def test_window_goes_with_its_mask_only(options):
    with pytest.raises(ts.ConfigError, match="window"):
        ts.Workload(**options)


@pytest.mark.parametrize("window", [-1, (1, -1), (1, 2, 3), 1.5, "3", (None,)])
def test_malformed_windows(window):
    with pytest.raises(ts.ConfigError, match="window"):
        ts.Workload(mask="window", window=window)


def test_one_number_is_a_window_to_the_left():
    assert ts.Workload(mask="window", window=5).window == (5, 0)
    assert ts.Workload(mask="window", window=(None, 2)).window == (None, 2)


@pytest.mark.parametrize(
    ("seq_q", "seq_kv", "pairs"),
    [(1024, 1024, 524800), (1024, 4096, 3670528), (1, 1, 1), (5, 3, 6), (3, 5, 12)],
)
def test_causal_pairs_are_counted_exactly(seq_q, seq_kv, pairs):
    w = ts.Workload(batch=1, heads=1, seq_q=seq_q, seq_kv=seq_kv, head_dim=128)
    assert w.visible_pairs == pairs
    assert w.useful_flops == 2 * pairs * 256


def test_flops_count_query_heads_and_both_head_dims():
    w = ts.Workload(heads=32, kv_heads=8, seq_q=1024, head_dim=192, head_dim_v=128, mask="full")
    assert w.useful_flops == 32 * 671088640


def test_counts_beyond_32_bits_do_not_wrap():
    sizes = {"batch": 64, "heads": 128, "seq_q": 131072, "head_dim": 128}
    w = ts.Workload(mask="full", **{name: np.int32(size) for name, size in sizes.items()})
    assert w.useful_flops == 72057594037927936
    assert all(type(getattr(w, name)) is int for name in sizes)


def test_to_dict_holds_every_field():
    fields = ts.Workload(mask="window", window=7).to_dict()
    assert set(fields) == {field.name for field in dataclasses.fields(ts.Workload)}
    assert fields["window"] == [7, 0]

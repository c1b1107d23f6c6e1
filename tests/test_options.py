from pathlib import Path

import numpy as np
import pytest

from tilesim.errors import ConfigError
from tilesim.masks import parse_window
from tilesim.options import InputOptions, WorkloadOptions, tensors


@pytest.mark.parametrize(
    ("text", "window"),
    [
        (None, None),
        ("7", (7, 0)),
        ("7,3", (7, 3)),
        (" 7 , 3 ", (7, 3)),
        ("none,0", (None, 0)),
        ("0,none", (0, None)),
    ],
)
def test_windows(text, window):
    assert parse_window(text) == window


@pytest.mark.parametrize("text", ["", "-1", "1,2,3", "1.5", "a", "1,", "1,-2", "\u0663"])
def test_malformed_windows(text):
    with pytest.raises(ConfigError, match="N or LEFT,RIGHT"):
        parse_window(text)


@pytest.mark.parametrize("text", ["", "1,", "-1", "1.5", "a", "1;2", "\u0663"])
def test_malformed_key_lengths(text):
    with pytest.raises(ConfigError, match=r"--key-lengths: got .*integers >= 0"):
        WorkloadOptions(key_lengths=text).workload()


def test_variants_reach_the_workload():
    workload = WorkloadOptions(
        batch=2, seq=64, align="top-left", key_lengths="64, 0", softcap=30.0, alibi=True, sinks=True
    ).workload()
    assert (workload.align, workload.key_lengths, workload.softcap) == ("top-left", (64, 0), 30.0)
    assert workload.alibi
    assert workload.sinks


def test_seq_sets_both_lengths_unless_one_is_given_apart():
    assert WorkloadOptions(seq=64).sizes == {"seq_q": 64, "seq_kv": 64}
    assert WorkloadOptions(seq=64, seq_q=1).sizes == {"seq_q": 1, "seq_kv": 64}
    assert WorkloadOptions(seq_kv=9).sizes == {"seq_kv": 9}


def test_a_window_alone_asks_for_the_window_mask():
    assert WorkloadOptions(window="4").workload().mask == "window"
    with pytest.raises(ConfigError, match="window"):
        WorkloadOptions(window="4", mask="full").workload()


def test_tensors_come_from_the_sample_sizes_or_a_file(tmp_path):
    (q, _, _), source = tensors(InputOptions(), WorkloadOptions(), 0)
    assert "sample" in source
    assert q.shape == (1, 9, 1024, 64)

    sized = WorkloadOptions(heads=4, kv_heads=2, seq=10, head_dim=8)
    (q, k, v), source = tensors(InputOptions(), sized, 3)
    assert "seed 3" in source
    assert (q.shape, k.shape, v.shape) == ((1, 4, 10, 8), (1, 2, 10, 8), (1, 2, 10, 8))
    np.testing.assert_array_equal(tensors(InputOptions(), sized, 3)[0][0], q)
    assert (tensors(InputOptions(), sized, 4)[0][0] != q).any()

    np.savez(tmp_path / "x.npz", q=q, k=k, v=v)
    loaded, source = tensors(InputOptions(input=tmp_path / "x.npz"), WorkloadOptions(heads=4), 0)
    assert source.endswith("x.npz")
    np.testing.assert_array_equal(loaded[2], v)


@pytest.mark.parametrize(
    ("name", "seen"), [("heads", 4), ("kv_heads", 2), ("seq_q", 10), ("head_dim", 8), ("batch", 1)]
)
def test_sizes_that_contradict_the_file_are_refused(tmp_path, name, seen):
    (q, k, v), _ = tensors(InputOptions(), WorkloadOptions(heads=4, kv_heads=2, seq=10, head_dim=8), 0)
    path = Path(tmp_path / "x.npz")
    np.savez(path, q=q, k=k, v=v)
    option = "--" + name.replace("_", "-")
    with pytest.raises(ConfigError, match=rf"{option}: got 7;.*{seen}"):
        tensors(InputOptions(input=path), WorkloadOptions(**{name: 7}), 0)


def test_negative_seed_is_refused():
    with pytest.raises(ConfigError, match="seed"):
        tensors(InputOptions(), WorkloadOptions(seq=4), -1)

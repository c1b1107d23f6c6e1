"""Variants on the command line."""

import json

import numpy as np
import pytest

import tilesim as ts
from tilesim.variant import standard_slopes

SIZES = ["--batch", "2", "--heads", "2", "--seq-q", "4", "--seq-kv", "40", "--head-dim", "8"]
ALL = [
    "--align", "top-left", "--softcap", "30", "--key-lengths", "40,12", "--kv-splits", "2", "--alibi",
    "--sinks", "--kv-tile", "16",
]  # fmt: skip


@pytest.fixture
def tensors(rng):
    return {name: rng.standard_normal((1, 2, 24, 8)).astype(np.float16) for name in "qkv"}


@pytest.mark.parametrize("command", ["run", "budget", "estimate"])
def test_reports_name_every_variant(tilesim_cli, command):
    status, out, err = tilesim_cli(command, *SIZES, *ALL)
    assert (status, err) == (0, "")
    text = " ".join(out.split())
    for words in ("aligned top-left", "key lengths 40, 12", "softcap 30", "ALiBi", "sinks", "key splits 2"):
        assert words in text
    if command == "run":
        counts = ts.Tile(kv_tile=16).counts(
            ts.Workload(batch=2, heads=2, seq_q=4, seq_kv=40, align="top-left", key_lengths=(40, 12))
        )
        assert f"Score tiles: {counts.full} full, {counts.partial} partial, {counts.skipped} skipped" in text


def test_documents_hold_every_variant(tilesim_cli):
    status, out, _ = tilesim_cli("run", *SIZES, *ALL, "--json")
    assert status == 0
    document = json.loads(out)
    workload = document["workload"]
    assert (workload["align"], workload["softcap"], workload["key_lengths"]) == ("top-left", 30.0, [40, 12])
    assert workload["alibi"]
    assert workload["sinks"]
    assert document["tile"]["kv_splits"] == 2
    assert set(document["tiles"]) == {"full", "partial", "skipped"}


def test_arrays_of_the_file_are_used_and_named(tilesim_cli, tmp_path, tensors, rng):
    extra = {
        "attn_mask": rng.random((24, 24)) < 0.5,
        "alibi_slopes": np.array([0.5, 0.25]),
        "sinks": np.array([1.0, -np.inf]),
        "key_lengths": np.array([20]),
    }
    path = tmp_path / "in.npz"
    np.savez(path, **tensors, **extra)
    status, _, err = tilesim_cli("run", "--input", path, "--out", tmp_path / "out.npz", "--mask", "full")
    assert status == 0
    assert err.count("\n") == 1
    assert f"note: {path} holds attn_mask, alibi_slopes, sinks, key_lengths" in err
    assert tilesim_cli("run", "--input", path, "--quiet")[2] == ""
    output = ts.attention(*tensors.values(), mask="full", precision="half-data-float-state", **extra)
    np.testing.assert_array_equal(np.load(tmp_path / "out.npz")["output"], output)


def test_slopes_and_sinks_without_a_file(tilesim_cli, tmp_path, tensors):
    np.savez(tmp_path / "in.npz", **tensors)
    out = tmp_path / "out.npz"
    assert tilesim_cli("run", "--input", tmp_path / "in.npz", "--alibi", "--sinks", "--out", out)[::2] == (
        0,
        "",
    )
    np.testing.assert_array_equal(standard_slopes(2), [2.0**-4, 2.0**-8])
    options = {"alibi_slopes": standard_slopes(2), "sinks": np.zeros(2)}
    output = ts.attention(*tensors.values(), precision="half-data-float-state", **options)
    np.testing.assert_array_equal(np.load(out)["output"], output)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["budget", "--align", "left"], ["align", "left", "top-left"]),
        (["budget", "--softcap", "-1"], ["softcap", "-1", ">= 0"]),
        (["budget", "--softcap", "nan"], ["softcap", "nan"]),
        (["estimate", "--key-lengths", "5,x"], ["--key-lengths", "5,x"]),
        (["estimate", "--key-lengths", "5,6"], ["key_lengths", "1 lengths"]),
        (["estimate", "--key-lengths", "2000"], ["key_lengths", "2000", "1024"]),
        (["estimate", "--kv-splits", "0"], ["kv_splits", "0"]),
        (["budget", "--seq-kv", "0"], ["seq_kv", "0", ">= 1"]),
        (["run", "--measure", "--softcap", "3", "--seq", "16"], ["softcap", "measured"]),
        (["sweep", "--softcap", "1,,2"], ["--softcap"]),
    ],
)
def test_what_cannot_be_is_refused_in_one_line(tilesim_cli, arguments, words):
    status, out, err = tilesim_cli(*arguments)
    assert (status, out) == (2, "")
    assert err.count("\n") == 1
    assert all(word in err for word in words)


def test_key_lengths_come_from_one_place(tilesim_cli, tmp_path, tensors):
    np.savez(tmp_path / "in.npz", **tensors, key_lengths=np.array([20]))
    status, _, err = tilesim_cli("run", "--input", tmp_path / "in.npz", "--key-lengths", "12")
    assert status == 2
    assert "must be left out" in err


def test_sweep_over_splits_recommends_some_for_decoding(tilesim_cli):
    status, out, _ = tilesim_cli(
        "sweep",
        "--heads",
        "2",
        "--seq-q",
        "1",
        "--seq-kv",
        "16384",
        "--kv-splits",
        "1:8",
        "--alibi",
        "--best",
    )
    assert status == 0
    assert "4 configurations: 4 fits" in out
    assert "kv_splits 8" in " ".join(out.split())

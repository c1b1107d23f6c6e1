"""Values that once gave a traceback, or were taken for something else: refused in one line, or defined."""

import json
import os
import struct
import subprocess
import sys
import zipfile

import numpy as np
import pytest

import tilesim as ts

Q = np.random.default_rng(0).standard_normal((1, 1, 4, 8)).astype(np.float32)
HUGE = "9" * 5000


class NoArray:
    def __array__(self, *arguments, **options):
        raise RuntimeError("boom")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"scale": 10**400}, "scale"),
        ({"scale": b"1"}, "scale"),
        ({"scale": np.True_}, "scale"),
        ({"softcap": 10**400}, "softcap"),
        ({"softcap": np.True_}, "softcap"),
        ({"key_lengths": [[1], [1, 2]]}, "key_lengths"),
        ({"key_lengths": [[3]]}, "key_lengths"),
        ({"key_lengths": NoArray()}, "key_lengths"),
        ({"sinks": NoArray()}, "sinks"),
        ({"sinks": True}, "sinks"),
        ({"alibi_slopes": [True]}, "alibi_slopes"),
        ({"tile": 3}, "tile"),
        ({"tile": 0}, "tile"),
        ({"tile": {}}, "tile"),
    ],
)
def test_bad_options_are_refused(options, words):
    for function in (ts.attention, ts.simulate):
        with pytest.raises(ts.TilesimError, match=words):
            function(Q, Q, Q, **options)


def test_compare_takes_a_single_name_too():
    assert list(ts.simulate(Q, Q, Q, compare="float").errors) == ["half-data-float-state", "float"]


@pytest.mark.parametrize("side", [2**62, 2**63, 10**30])
def test_a_window_of_any_size_is_one_without_end(side):
    expected = ts.attention(Q, Q, Q, mask="full")
    np.testing.assert_array_equal(ts.attention(Q, Q, Q, mask="window", window=(side, side)), expected)
    assert ts.Workload(seq_q=8, heads=1, mask="window", window=(side, side)).visible_pairs == 64


@pytest.mark.parametrize("policy", list(ts.PRECISIONS))
@pytest.mark.parametrize("softcap", [1e5, 3.4e38, 1e300])
def test_a_cap_beyond_the_data_type_caps_nothing(policy, softcap):
    output = ts.attention(Q, Q, Q, precision=policy, softcap=softcap)
    np.testing.assert_allclose(output, ts.attention(Q, Q, Q, precision=policy), rtol=0, atol=0.02)


@pytest.mark.parametrize(
    "arguments",
    [
        ["run", "--input", "good.npz", "--key-lengths", HUGE],
        ["budget", "--mask", "window", "--window", HUGE],
        ["sweep", "--kv-splits", HUGE],
        ["budget", "--seq", HUGE],
    ],
)
def test_numbers_without_end_are_one_line(arguments, tmp_path):
    np.savez(tmp_path / "good.npz", q=Q, k=Q, v=Q)
    done = run_cli(arguments, tmp_path)
    assert done.returncode == 2
    assert len(done.stderr.splitlines()) <= 2 + len(HUGE) // 70


def run_cli(arguments, directory, **settings):
    return subprocess.run(
        [sys.executable, "-m", "tilesim", *arguments], cwd=directory, capture_output=True, text=True,
        env=os.environ | settings,
    )  # fmt: skip


def header(text):
    return b"\x93NUMPY\x01\x00" + struct.pack("<H", len(text)) + text + bytes(81)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("sinks.npy", b"hello"),
        ("key_lengths", b"plain"),
        ("attn_mask.npy", header(b"{'descr': '|b1', 'fortran_order': False, 'shape': (%d, 9), }\n" % 10**22)),
        ("attn_mask.npy", header(b"{'descr': [" + b"(" * 300 + b"\n")),
    ],
)
def test_damaged_members_are_one_line(name, content, tmp_path):
    np.savez(tmp_path / "bad.npz", q=Q, k=Q, v=Q)
    with zipfile.ZipFile(tmp_path / "bad.npz", "a") as file:
        file.writestr(name, content)
    done = run_cli(["run", "--input", "bad.npz"], tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)


def test_safetensors_bring_their_masks_along(tmp_path):
    from safetensors.numpy import save_file

    arrays = dict.fromkeys("qkv", Q) | {"attn_mask": np.eye(4, dtype=bool)}
    save_file(arrays, tmp_path / "masked.safetensors")
    done = run_cli(["run", "--input", "masked.safetensors", "--mask", "full", "--json"], tmp_path)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["workload"]["attn_mask"] == "bool"
    assert "attn_mask" in done.stderr


def test_threading_layers_are_never_asked_for(tmp_path):
    np.savez(tmp_path / "good.npz", q=Q, k=Q, v=Q)
    for layer in ("tbb", "bogus"):
        done = run_cli(["run", "--input", "good.npz", "--quiet"], tmp_path, NUMBA_THREADING_LAYER=layer)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("threads", ["0", "-1", " 0", "+0", "0_0"])
@pytest.mark.parametrize("command", ["run", "estimate"])
def test_a_number_of_threads_that_numba_cannot_be_imported_with(command, threads):
    done = subprocess.run(
        [sys.executable, "-m", "tilesim", command, "--quiet"], capture_output=True, text=True,
        env={**os.environ, "NUMBA_NUM_THREADS": threads},
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr == f"tilesim: NUMBA_NUM_THREADS: got {threads.strip()!r}; must be an integer >= 1\n"

"""Tensors of .safetensors files: read in place of .npz, whatever else or whatever damage is in the file."""

import json
import os
import subprocess
import sys

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save, save_file

import tilesim as ts
from tilesim import cli
from tilesim.errors import DTypeError, InputError
from tilesim.input_files import load_tensors

TYPES = {"float16": np.float16, "bfloat16": ml_dtypes.bfloat16, "float32": np.float32, "float64": np.float64}
Q = {"q": {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}}
VALID = save({name: np.ones((1, 1, 2, 2), np.float16) for name in "qkv"})


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.safetensors"


@pytest.fixture
def run(capsys):
    """Run `tilesim run` in this process: status, standard output, standard error."""

    def call(*arguments):
        status = cli.call(["run", *(str(argument) for argument in arguments)])
        return (status, *capsys.readouterr())

    return call


def arrays(rng, dtype=np.float16):
    shapes = {"q": (1, 4, 20, 8), "k": (1, 2, 20, 8), "v": (1, 2, 20, 8)}
    return {name: rng.standard_normal(shape).astype(dtype) for name, shape in shapes.items()}


@pytest.mark.parametrize("dtype", TYPES)
def test_every_type_comes_back(path, rng, dtype):
    saved = arrays(rng, TYPES[dtype])
    save_file({**saved, "bias": np.ones(3, np.int32)}, path)
    for got, name in zip(load_tensors(path), "qkv", strict=True):
        assert got.dtype == TYPES[dtype]
        np.testing.assert_array_equal(got, saved[name])


def test_a_run_on_a_file_is_simulate_on_its_tensors(path, run, tmp_path, rng):
    saved = arrays(rng, ml_dtypes.bfloat16)
    save_file(saved, path)
    status, text, _ = run("--input", path, "--out", tmp_path / "out.npz", "--json")
    assert status == 0
    assert json.loads(text)["workload"]["kv_heads"] == 2
    with np.load(tmp_path / "out.npz") as written:
        expected = ts.attention(saved["q"], saved["k"], saved["v"])
        np.testing.assert_array_equal(written["output"].view(ml_dtypes.bfloat16), expected)


@pytest.mark.parametrize("suffix", [".npz", ".safetensors"])
def test_other_names_and_the_other_layout(run, tmp_path, rng, suffix):
    saved, path = arrays(rng), tmp_path / f"x{suffix}"
    names = {"q": "layers.0.query", "k": "layers.0.key", "v": "v"}
    swapped = {names[name]: np.ascontiguousarray(x.swapaxes(1, 2)) for name, x in saved.items()}
    np.savez(path, **swapped) if suffix == ".npz" else save_file(swapped, path)
    options = ("--q-name", names["q"], "--k-name", names["k"], "--layout", "BSND", "--heads", 4, "--seq", 20)
    status, text, err = run("--input", path, "--out", tmp_path / "out.npz", "--measure", *options)
    assert (status, err) == (0, "")
    assert "4 heads on 2 key heads, 20 queries x 20 keys" in text
    with np.load(tmp_path / "out.npz") as written:
        expected = ts.attention(saved["q"], saved["k"], saved["v"])
        np.testing.assert_array_equal(written["output"], expected.swapaxes(1, 2))

    status, out, err = run("--input", path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    for word in (*swapped, "must hold arrays q, k and v; lacks q, k", "--q-name"):
        assert word in err


@pytest.mark.parametrize("sizes", [(), ("--heads", 2, "--kv-heads", 1, "--seq", 24, "--head-dim", 8)])
def test_without_a_file_the_layout_is_that_of_the_output(run, tmp_path, sizes):
    outputs = {}
    for layout in ("BNSD", "BSND"):
        assert run("--layout", layout, *sizes, "--out", tmp_path / "out.npz")[0] == 0
        with np.load(tmp_path / "out.npz") as written:
            outputs[layout] = written["output"]
    np.testing.assert_array_equal(outputs["BSND"], outputs["BNSD"].swapaxes(1, 2))


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--layout", "SBND"), ["--layout: got 'SBND'", "BNSD, BSND"]),
        (("--k-name", "key"), ["--k-name: got 'key'", "--input"]),
        (("--input", "absent.safetensors"), ["absent.safetensors", "No such file"]),
        (("--input", "d.safetensors"), ["d.safetensors", "Is a directory"]),
    ],
)
def test_bad_usage_is_one_line_and_status_2(run, tmp_path, monkeypatch, arguments, words):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.safetensors").mkdir()
    status, out, err = run(*arguments, "--out", "out.npz")
    assert (status, out, err.count("\n")) == (2, "", 1)
    for word in words:
        assert word in err
    assert os.listdir(tmp_path) == ["d.safetensors"]


def test_long_lists_of_names_are_cut(path):
    names = [f"layers.{index}" for index in range(30)] + ["x" * 500]
    save_file({name: np.ones(1, np.float16) for name in names}, path)
    with pytest.raises(InputError, match=r"layers.0, .* and 11 more") as error:
        load_tensors(path, ("q", "k", "y" * 500))
    assert len(str(error.value)) < 1000


@pytest.mark.parametrize("dtype", ["I32", "BOOL", "C64", "F8_E4M3", "F8_E5M2"])
def test_other_types_are_type_errors(path, dtype):
    size = {"I32": 4, "C64": 8}.get(dtype, 1)
    entries = {
        name: {"dtype": dtype, "shape": [1], "data_offsets": [index * size, index * size + size]}
        for index, name in enumerate("qkv")
    }
    path.write_bytes(with_header(json.dumps(entries).encode(), bytes(3 * size)))
    with pytest.raises(DTypeError, match=rf"x\.safetensors: q: got '{dtype}'; must have dtype float16"):
        load_tensors(path)


def with_header(header, data=bytes(8), length=None):
    return (len(header) if length is None else length).to_bytes(8, "little") + header + data


def entry(**changes):
    return with_header(json.dumps({"q": {**Q["q"], **changes}}).encode())


TWICE = b'"q": {"dtype": "%s", "shape": [4], "data_offsets": [0, 8]}'
HOSTILE = {
    "empty": b"",
    "short": b"1234",
    "text": b"not tensors at all",
    "truncated": VALID[:-1],
    "longer": VALID + b"\0",
    "header of 4 EiB": with_header(b"{}", length=2**62),
    "header of 99 MB": with_header(b"{}", length=99_000_000),
    "header past the end": with_header(b"{}", length=11),
    "header ends early": with_header(json.dumps(Q).encode(), length=20),
    "no JSON": with_header(b"{q"),
    "no UTF-8": with_header(b"\xff\xfe"),
    "list": with_header(b"[]"),
    "deep": with_header(b'{"q":' + b"[" * 100_000),
    "offset behind a hole": entry(data_offsets=[8, 16]),
    "offset past the end": entry(data_offsets=[0, 80]),
    "offsets the wrong way round": entry(data_offsets=[8, 0]),
    "negative offset": entry(data_offsets=[-8, 0]),
    "shape of another size": entry(shape=[3]),
    "shape that overflows": entry(shape=[2**40, 2**40]),
    "negative shape": entry(shape=[-2]),
    "unknown type": entry(dtype="F33"),
    "shared bytes": with_header(json.dumps({**Q, "k": Q["q"], "v": Q["q"]}).encode()),
    "one name twice": with_header(b"{" + TWICE % b"F16" + b"," + TWICE % b"BF16" + b"}"),
    "one name twice, once escaped": with_header(
        b"{" + TWICE % b"F16" + b"," + TWICE.replace(b"q", rb"\u0071") % b"F16" + b"}"
    ),
    "65 axes": with_header(
        json.dumps(
            {
                name: {"dtype": "F32", "shape": [1] * 65, "data_offsets": [4 * index, 4 * index + 4]}
                for index, name in enumerate("qkv")
            }
        ).encode(),
        bytes(12),
    ),
}


@pytest.mark.parametrize("kind", HOSTILE)
def test_hostile_files_are_one_line_and_status_2(path, run, kind):
    path.write_bytes(HOSTILE[kind])
    with pytest.raises(InputError, match=r"x\.safetensors: got .*; must (be a \.safetensors|stand in)"):
        load_tensors(path)
    status, out, err = run("--input", path, "--out", path.with_suffix(".npz"))
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert os.listdir(path.parent) == ["x.safetensors"]


@given(at=st.integers(0, len(VALID) - 1), value=st.integers(0, 255))
def test_any_byte_may_be_wrong(tmp_path_factory, at, value):
    path = tmp_path_factory.getbasetemp() / "flipped.safetensors"
    path.write_bytes(VALID[:at] + bytes([value]) + VALID[at + 1 :])
    try:
        load_tensors(path)
    except InputError as error:
        assert "\n" not in str(error)  # noqa: PT017 - most bytes make no error


def test_names_can_neither_break_the_line_nor_reach_the_terminal(path, run):
    name = "a\nb\x1b[31m" + "c" * 100_000
    named_in_the_error = json.dumps({name: {**Q["q"], "data_offsets": [1, 9]}}).encode()
    for content in (save({name: np.ones(1, np.float16)}), with_header(named_in_the_error, bytes(9))):
        path.write_bytes(content)
        err = run("--input", path)[2]
        assert err.count("\n") == 1
        assert "\x1b" not in err
        assert len(err) < 1000


def test_without_safetensors_the_message_says_what_to_install(path, run, monkeypatch):
    path.write_bytes(VALID)
    monkeypatch.setitem(sys.modules, "safetensors", None)
    status, out, err = run("--input", path)
    assert (status, out, err.count("\n")) == (2, "", 1)
    assert "pip install 'tilesim[safetensors]'" in err


@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere peak memory has other units, or none")
def test_only_the_three_tensors_are_read(path):
    header = {name: {"dtype": "F16", "shape": [1, 1, 2, 2]} for name in "qkv"}
    header["weights"] = {"dtype": "F16", "shape": [2**29]}
    start = 0
    for name, size in (("weights", 2**30), ("q", 8), ("k", 8), ("v", 8)):
        header[name]["data_offsets"] = [start, start + size]
        start += size
    path.write_bytes(with_header(json.dumps(header).encode(), b""))
    # A hole instead of a gibibyte of weights.
    os.truncate(path, path.stat().st_size + start)
    code = (
        "import resource, sys\n"
        "from tilesim.input_files import load_tensors\n"
        "import safetensors\n"
        "peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss\n"
        "before = peak()\n"
        "load_tensors(sys.argv[1])\n"
        "print(peak() - before)\n"
    )
    done = subprocess.run([sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 100_000

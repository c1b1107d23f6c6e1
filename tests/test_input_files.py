import ml_dtypes
import numpy as np
import pytest

from tilesim.errors import InputError
from tilesim.input_files import load_tensors


@pytest.fixture
def tensors(rng):
    return {name: rng.standard_normal((1, 2, 3, 4)).astype(np.float16) for name in "qkv"}


def test_tensors_come_back(tmp_path, tensors):
    np.savez(tmp_path / "x.npz", extra=np.ones(3), **tensors)
    for got, name in zip(load_tensors(tmp_path / "x.npz"), "qkv", strict=True):
        np.testing.assert_array_equal(got, tensors[name])


def test_compressed_files_too(tmp_path, tensors):
    np.savez_compressed(tmp_path / "x.npz", **tensors)
    np.testing.assert_array_equal(load_tensors(tmp_path / "x.npz")[1], tensors["k"])


def test_bfloat16_survives_the_way_through_a_file(tmp_path, tensors):
    narrow = {name: x.astype(ml_dtypes.bfloat16) for name, x in tensors.items()}
    np.savez(tmp_path / "x.npz", **narrow)
    q, _, _ = load_tensors(tmp_path / "x.npz")
    assert q.dtype == ml_dtypes.bfloat16
    np.testing.assert_array_equal(q, narrow["q"])


def damaged(kind, path, tensors):
    np.savez(path, **tensors)
    whole = path.read_bytes()
    if kind == "missing":
        path.unlink()
    elif kind == "directory":
        path.unlink()
        path.mkdir()
    elif kind == "truncated":
        path.write_bytes(whole[: len(whole) // 2])
    elif kind == "flipped":
        at = whole.index(tensors["k"].tobytes()) + 4
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 255]) + whole[at + 1 :])
    elif kind == "empty":
        path.write_bytes(b"")
    elif kind == "text":
        path.write_text("not tensors at all")
    elif kind == "single array":
        with path.open("wb") as file:
            np.save(file, tensors["q"])
    elif kind == "pickled":
        np.savez(path, q=np.array([{}]), k=tensors["k"], v=tensors["v"])
    elif kind == "without v":
        np.savez(path, q=tensors["q"], k=tensors["k"])


@pytest.mark.parametrize(
    "kind",
    ["missing", "directory", "truncated", "flipped", "empty", "text", "single array", "pickled", "without v"],
)
def test_files_that_cannot_be_used_are_refused_by_name(tmp_path, tensors, kind):
    path = tmp_path / "x.npz"
    damaged(kind, path, tensors)
    with pytest.raises(InputError, match=r"x\.npz.*must"):
        load_tensors(path)


def test_message_names_the_array_that_is_missing(tmp_path, tensors):
    np.savez(tmp_path / "x.npz", q=tensors["q"], key=tensors["k"], v=tensors["v"])
    with pytest.raises(InputError, match=r"'q, key, v'.*lacks k"):
        load_tensors(tmp_path / "x.npz")

import os
import stat

import ml_dtypes
import numpy as np
import pytest

from tilesim.errors import InputError, OutputError
from tilesim.files import atomic_write, check_writable, load_tensors, save_arrays


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


def test_saved_arrays_replace_the_old_file_and_leave_nothing_else(tmp_path):
    path = tmp_path / "out.npz"
    path.write_bytes(b"old")
    path.chmod(0o640)
    save_arrays(path, {"output": np.arange(4.0)})
    with np.load(path) as arrays:
        np.testing.assert_array_equal(arrays["output"], np.arange(4.0))
    assert os.listdir(tmp_path) == ["out.npz"]
    assert stat.S_IMODE(path.stat().st_mode) == 0o640


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_write_that_fails_leaves_the_old_file(tmp_path, error):
    path = tmp_path / "out.npz"
    path.write_bytes(b"old")

    def write_half():
        with atomic_write(path) as file:
            file.write(b"half of it")
            raise error

    with pytest.raises(error):
        write_half()
    assert path.read_bytes() == b"old"
    assert os.listdir(tmp_path) == ["out.npz"]


def test_a_link_keeps_pointing_to_the_file_that_is_written(tmp_path):
    (tmp_path / "real.npz").write_bytes(b"old")
    (tmp_path / "link.npz").symlink_to(tmp_path / "real.npz")
    with atomic_write(tmp_path / "link.npz") as file:
        file.write(b"new")
    assert (tmp_path / "link.npz").is_symlink()
    assert (tmp_path / "real.npz").read_bytes() == b"new"


def test_checking_leaves_no_trace(tmp_path):
    path = tmp_path / "out.npz"
    check_writable(path, (".npz",))
    assert not os.listdir(tmp_path)
    path.write_bytes(b"old")
    check_writable(path, (".npz",))
    assert path.read_bytes() == b"old"
    check_writable("/dev/null", (".npz",))


def test_paths_that_cannot_be_written_are_refused(tmp_path):
    (tmp_path / "file").write_text("")
    (tmp_path / "directory.npz").mkdir()
    for path, rule in (
        ("out.png", r"\.npz"),
        ("absent/out.npz", "No such file"),
        ("file/out.npz", "Not a directory"),
        ("directory.npz", "is a directory"),
    ):
        with pytest.raises(OutputError, match=rule):
            check_writable(tmp_path / path, (".npz",))


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_read_only_directory_is_refused(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="Permission denied"):
        check_writable(tmp_path / "out.npz", (".npz",))

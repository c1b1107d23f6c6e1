import os
import stat

import numpy as np
import pytest

from tilesim.errors import OutputError
from tilesim.files import atomic_write, check_writable, save_arrays


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

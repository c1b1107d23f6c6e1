"""The disk cache: an edit of any kernel recompiles all, and a directory without write access does no harm."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import tilesim
from tilesim.kernels._jit import DISABLED, jit, jit_entry

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
import numpy as np
from tilesim.kernels.mask_tiles import NO_MASK, MaskTensor, classify_groups
mask, rows = MaskTensor(NO_MASK, 0, 1, 0, 0, 0, 0), np.zeros(1, np.int64)
kinds = np.empty((1, 1), np.uint8)
assert classify_groups(mask, 0, rows, rows + 7, rows, rows, 8, 8, 0, kinds) == 7
print(sum(classify_groups.stats.cache_hits.values()))
"""


def run(root, cache, more=""):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    command = [sys.executable, "-c", PROGRAM + more, str(root)]
    done = subprocess.run(command, capture_output=True, text=True, env=env, check=True)
    return int(done.stdout)


def test_an_edited_helper_in_another_module_is_not_stale(tmp_path):
    root, cache = tmp_path / "root", tmp_path / "cache"
    shutil.copytree(Path(tilesim.__file__).parent, root / "tilesim")
    assert run(root, cache) == 0
    assert run(root, cache) == 1
    with (root / "tilesim" / "kernels" / "exp.py").open("a") as file:
        file.write("# edited\n")
    assert run(root, cache) == 0
    assert run(root, cache) == 1


@pytest.mark.skipif(DISABLED, reason="nothing is compiled")
def test_the_compiler_wakes_when_there_is_something_to_compile_and_not_before(tmp_path):
    root = Path(tilesim.__file__).parent.parent
    assert run(root, tmp_path) == 0
    more = """
assert "numba.np.arraymath" not in sys.modules
short = rows.astype(np.int32)
assert classify_groups(mask, 0, short, short + 7, short, short, 8, 8, 0, kinds) == 7
assert "numba.np.arraymath" in sys.modules
"""
    assert run(root, tmp_path, more) == 1


@pytest.mark.parametrize("suffix", [".nbi", ".nbc"])
@pytest.mark.parametrize("left_bytes", [0, 100])
def test_a_damaged_cache_is_compiled_anew_and_mended(tmp_path, suffix, left_bytes):
    root = Path(tilesim.__file__).parent.parent
    assert run(root, tmp_path) == 0
    (file,) = tmp_path.rglob(f"*{suffix}")
    os.truncate(file, left_bytes)
    assert run(root, tmp_path) == 0
    assert run(root, tmp_path) == 1


@pytest.mark.parametrize("most_bytes", [0, 2000])
def test_a_full_cache_does_no_harm(tmp_path, most_bytes):
    full = f"import resource\nresource.setrlimit(resource.RLIMIT_FSIZE, ({most_bytes}, {most_bytes}))\n"
    root = Path(tilesim.__file__).parent.parent
    done = subprocess.run(
        [sys.executable, "-c", full + PROGRAM, str(root)], capture_output=True, text=True,
        env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)},
    )  # fmt: skip
    assert (done.stdout.strip(), done.stderr, done.returncode) == ("0", "", 0)
    assert run(root, tmp_path) == 0
    assert run(root, tmp_path) == 1


def test_kernels_compile_where_no_cache_can_be_written(tmp_path):
    root = tmp_path / "root"
    shutil.copytree(Path(tilesim.__file__).parent, root / "tilesim")
    unwritable = "from numba.core import caching\ncaching.CacheImpl._locator_classes = []\n"
    done = subprocess.run(
        [sys.executable, "-c", unwritable + PROGRAM, str(root)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "0"


def test_a_part_of_a_kernel_refuses_a_call_from_python():
    program = "from tilesim.kernels.softmax import chunk_range; chunk_range(0, 8)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 1
    assert re.search("SystemError: .*chunk_range.* returned NULL", done.stderr)


@pytest.mark.parametrize("keyword", [False, True])
def test_a_part_is_compiled_once_for_all_constants(keyword):
    @jit
    def less(x, y):
        return x - y

    @jit_entry
    def entry(x):
        if keyword:
            return less(x, y=1) + less(x, y=2) + less(x, y=x)
        return less(x, 1) + less(x, 2) + less(x, x)

    assert entry(10) == 17
    if not DISABLED:
        assert len(less.overloads) == 1


@pytest.mark.skipif(DISABLED, reason="nothing is compiled")
def test_flags_that_say_the_same_find_what_was_compiled_for_each_other():
    from tilesim.kernels._compilers import _KernelFlags

    one, same, other = _KernelFlags(), _KernelFlags(), _KernelFlags()
    one.nrt = same.nrt = False
    other.nrt = True
    assert one == same == one.copy()
    assert hash(one) == hash(same)
    assert one != other
    assert one != _KernelFlags()

"""The disk cache: an edit of any kernel recompiles all, and a directory without write access does no harm."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import tilesim

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from tilesim.kernels import softmax
from tilesim.kernels._jit import jit_entry
from tilesim.kernels.rows import CHUNK
import tilesim.kernels.vector as vector
vector.padded_columns(5)
print(sum(vector.padded_columns.stats.cache_hits.values()))
"""


def run(root, cache):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(root)], capture_output=True, text=True, env=env, check=True
    )
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


def test_kernels_compile_where_no_cache_can_be_written(tmp_path):
    root = tmp_path / "root"
    shutil.copytree(Path(tilesim.__file__).parent, root / "tilesim")
    blocked = tmp_path / "file"
    blocked.write_text("")
    program = (
        "import sys; sys.path.insert(0, sys.argv[1])\n"
        "from numba.core import caching\n"
        "caching.CacheImpl._locator_classes = []\n"
        "from tilesim.kernels.vector import padded_columns, PANEL_COLUMNS\n"
        "print(padded_columns(1) == PANEL_COLUMNS)"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(root)], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "True"

"""Compiling the model in another process: what it leaves behind is used, and no failure of it is felt."""

import os
import subprocess
import sys

import pytest

from tilesim.kernels._jit import DISABLED
from tilesim.timing import ahead

pytestmark = pytest.mark.skipif(DISABLED, reason="nothing is compiled")

PROGRAM = """
import sys
from tilesim.kernels import attention, pipeline
from tilesim.kernels._cache import awaits_compilation
from tilesim.timing import ahead, device_time

ahead.os.sched_getaffinity = lambda _: range(2)
sys.executable = sys.argv[1]
kernels = attention.attention_worker, pipeline.run_core
found = [[awaits_compilation(kernel) for kernel in kernels]]
with ahead.compiled_ahead():
    started = len(ahead._children)
    ahead.wait()
found.append([awaits_compilation(kernel) for kernel in kernels])
device_time.warm_up()
with ahead.compiled_ahead():
    again = len(ahead._children)
print(found, started, again, sum(pipeline.run_core.stats.cache_hits.values()))
"""


def run(executable, cache):
    env = {**os.environ, "NUMBA_CACHE_DIR": str(cache)}
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(executable)], env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_what_the_other_process_compiled_is_loaded(tmp_path):
    assert run(sys.executable, tmp_path) == "[[True, True], [True, False]] 1 0 1"


@pytest.mark.parametrize("executable", ["/bin/false", "/no/such/python", ""])
def test_without_another_python_the_model_is_compiled_here(tmp_path, executable):
    started = int(executable == "/bin/false")
    assert run(executable, tmp_path) == f"[[True, True], [True, True]] {started} 0 0"


def test_the_other_process_imports_from_where_this_one_does(tmp_path, monkeypatch):
    (tmp_path / "queue.py").write_text("raise SystemExit('imported from the working directory')")
    monkeypatch.chdir(tmp_path)
    started = []
    monkeypatch.setattr(ahead, "_PROGRAM", "import sys; sys.path[:] = {path!r}; import queue; queue.Queue()")
    monkeypatch.setattr(ahead, "_pays", lambda: True)
    monkeypatch.setattr(sys, "path", [folder for folder in sys.path if folder])
    with ahead.compiled_ahead():
        started += ahead._children
        ahead.wait()
    assert [child.returncode for child in started] == [0]


def test_a_process_that_never_ends_is_given_up(monkeypatch):
    monkeypatch.setattr(ahead, "_PROGRAM", "import time; time.sleep(600)")
    monkeypatch.setattr(ahead, "_pays", lambda: True)
    monkeypatch.setattr(ahead, "PATIENCE_S", 0.1)
    with ahead.compiled_ahead():
        (child,) = ahead._children
        ahead.wait()
    assert child.returncode != 0

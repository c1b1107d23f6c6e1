"""Compiling the model of the chip in another process, while this one compiles the attention kernel.

Numba compiles one function at a time in a process. What the other one compiles comes back through Numba's
cache on disk; if it fails, or there is no such cache, this process compiles the model when it gets there.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator

_PROGRAM = "import sys; sys.path[:] = {path!r}; from tilesim.timing.device_time import warm_up; warm_up()"
PATIENCE_S = 60.0
"""Many times what compiling the model takes: then something is wrong over there."""
_children: list[subprocess.Popen[bytes]] = []


@contextlib.contextmanager
def compiled_ahead() -> Iterator[None]:
    """Let another process compile the model meanwhile, where both are to be compiled and a core is free."""
    child = _start() if _pays() else None
    if child is not None:
        _children.append(child)
    try:
        yield
    finally:
        if child is not None:
            child.terminate()
            child.wait()


def wait() -> None:
    """Wait until no other process compiles the model, or for as long as that may take."""
    while _children:
        with contextlib.suppress(subprocess.TimeoutExpired):
            _children.pop().wait(PATIENCE_S)


def _pays() -> bool:
    from tilesim.kernels._cache import awaits_compilation
    from tilesim.kernels.attention import attention_worker
    from tilesim.kernels.pipeline import run_core

    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return cores > 1 and awaits_compilation(attention_worker) and awaits_compilation(run_core)


def _start() -> subprocess.Popen[bytes] | None:
    # Within a frozen application, that is no Python.
    if not sys.executable or getattr(sys, "frozen", False):
        return None
    nothing = subprocess.DEVNULL
    # What this process imports from, and nothing else: by itself -c would look into the working directory.
    flags = ["-I", "-B"] if sys.dont_write_bytecode else ["-I"]
    command = [sys.executable, *flags, "-c", _PROGRAM.format(path=sys.path)]
    try:
        return subprocess.Popen(command, stdin=nothing, stdout=nothing, stderr=nothing)
    except OSError:
        return None

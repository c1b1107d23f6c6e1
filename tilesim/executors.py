"""Where the chunks of a sweep run: in this process, in others, or on a Dask cluster, behind one interface.

An executor is whatever has ``submit(function, *arguments)`` returning a future with ``result()``.
"""

from __future__ import annotations

import contextlib
import importlib
import multiprocessing
import os
import signal
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from typing import Any

from tilesim._checks import whole_number
from tilesim.errors import ConfigError, InputError


class InlineExecutor(Executor):
    """Runs everything at once in the calling thread."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any, **options: Any) -> Future[Any]:
        """Run the call and return its finished future; what it raises, Ctrl-C included, is raised here."""
        future: Future[Any] = Future()
        future.set_result(function(*arguments, **options))
        return future


def _begin_worker() -> None:
    # Numba is not loaded yet in a process that was just spawned. Ctrl-C reaches every process of a terminal;
    # the parent ends its workers.
    os.environ["NUMBA_NUM_THREADS"] = "1"
    signal.signal(signal.SIGINT, signal.SIG_IGN)


@contextlib.contextmanager
def open_executor(workers: int | None = None, scheduler: str | None = None) -> Iterator[tuple[Any, int]]:
    """Give an executor and the number of its workers; everything is closed at the end.

    Parameters
    ----------
    workers : int, optional
        Processes; 1 stays in this one, the default is one for each core.
    scheduler : str, optional
        Address of a Dask scheduler, such as ``tcp://host:8786``; then `workers` is not asked.

    Raises
    ------
    ConfigError
        If `workers` is no integer from 1 to 1,024, or dask.distributed is not installed.
    InputError
        If the scheduler cannot be reached.
    """
    if scheduler is not None:
        with _dask(scheduler) as opened:
            yield opened
        return
    count = os.cpu_count() or 1 if workers is None else whole_number("workers", workers, most=1024)
    if count == 1:
        yield InlineExecutor(), 1
        return
    context = multiprocessing.get_context("spawn")
    others = set(multiprocessing.active_children())
    pool = ProcessPoolExecutor(count, mp_context=context, initializer=_begin_worker)
    try:
        yield pool, count
    except BaseException:
        # Cancelling alone waits for workers that may be in the middle of a long chunk.
        pool.shutdown(wait=False, cancel_futures=True)
        for process in set(multiprocessing.active_children()) - others:
            process.kill()
        raise
    finally:
        pool.shutdown()


@contextlib.contextmanager
def _dask(scheduler: str) -> Iterator[tuple[Any, int]]:
    try:
        distributed: Any = importlib.import_module("distributed")
    except ImportError:
        raise ConfigError(
            "scheduler", scheduler, "needs dask.distributed: pip install 'tilesim[dask]'"
        ) from None
    try:
        client = distributed.Client(scheduler, timeout="10s")
    except (OSError, ValueError) as error:
        raise InputError("scheduler", scheduler, f"cannot be reached: {error}") from None
    try:
        workers = len(client.scheduler_info()["workers"])
        if not workers:
            raise InputError("scheduler", scheduler, "has no workers")
        yield client.get_executor(pure=False, retries=3), workers
    finally:
        client.close()

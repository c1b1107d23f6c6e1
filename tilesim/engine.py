"""Runs the compiled kernels: lays out storage, starts worker threads, watches them.

Workers are plain threads that release the interpreter's lock: no threading layer is involved, so several
callers, forked processes and any number of threads are all right.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim import scratch
from tilesim.masks import Band
from tilesim.precision import DEFAULT_PRECISION, PRECISIONS, Precision
from tilesim.softmax.tiling import is_basic_block
from tilesim.tile import Tile
from tilesim.units import align_up, ceil_div

Progress = Callable[[int, int], None]
"""Called now and then from the calling thread with tasks done and tasks in all."""

PACK_BLOCK = 256
"""Keys packed as one task, and over which V is known to be finite or not."""
BLOCK_ROWS = 128
"""Query rows of one task at most: K and V tiles are read from cache that many rows at a time."""
CACHE_LINE = 16
"""float32 elements of one cache line."""
LOCAL_ROWS = 512
"""Query rows for which workers pack a head's keys and values themselves, tile by tile, in one task."""
SMALL_FLOPS = 2_000_000
"""Below this, starting a thread costs more than it saves."""
POLL_S = 0.05
PLAIN_POLICY = "float"
"""The policy without rounding points, which has a faster softmax of its own."""


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class KernelRun:
    """What one pass of the kernel gives.

    Attributes
    ----------
    output : float32 array (batch, heads, seq_q, head_dim_v)
        Rounded to the data type of the policy.
    row_max, row_sum : float32 arrays (batch, heads, seq_q)
        State of each row after its last tile.
    wall_s : float
        Seconds of packing and kernel.
    threads : int
        Worker threads.
    """

    output: npt.NDArray[np.float32]
    row_max: npt.NDArray[np.float32]
    row_sum: npt.NDArray[np.float32]
    wall_s: float
    threads: int

    @property
    def lse(self) -> npt.NDArray[np.float32]:
        """Natural log-sum-exp of each row's scaled scores; -inf for a row without keys."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return (self.row_max + np.log(self.row_sum.astype(np.float64))).astype(np.float32)


def run_kernel(
    q: npt.NDArray[np.float32],
    k: npt.NDArray[np.float32],
    v: npt.NDArray[np.float32],
    *,
    tile: Tile,
    policy: Precision,
    band: Band,
    scale: float,
    threads: int | None = None,
    progress: Progress | None = None,
) -> KernelRun:
    """Run the tiled kernel on checked tensors.

    Parameters
    ----------
    q, k, v : float32 arrays (batch, heads, seq, head_dim), C-contiguous
    tile : Tile
        Only `kv_tile` and, at 1,024 keys, `softmax_rows` change numbers.
    policy : Precision
    band : Band
        Visible keys.
    scale : float
        Factor of the scores, rounded to the data type of the policy here.
    threads : int, optional
        Worker threads; by default as many as Numba is set to use. Never changes a bit of the result.
    progress : callable, optional
    """
    from tilesim.kernels import attention as kernel

    batch, heads, seq_q, depth = q.shape
    kv_heads, seq_kv, width = k.shape[1], k.shape[2], v.shape[3]
    q, k, v = (x.reshape(x.shape[0] * x.shape[1], *x.shape[2:]) for x in (q, k, v))
    numerics = _numerics(tile, policy, scale)
    sight = kernel.Sight(seq_kv - seq_q, band.left, band.right, seq_kv)
    flops = 2 * batch * heads * seq_q * seq_kv * (depth + width)
    workers = _worker_count(threads, flops)
    kv_tile = min(tile.kv_tile, seq_kv)
    local = seq_q * heads // kv_heads <= LOCAL_ROWS and batch * heads >= 2 * workers
    tasks = _tasks(batch * heads, seq_q, seq_kv, band, workers, LOCAL_ROWS if local else BLOCK_ROWS)
    block_rows = int(tasks[:, 2].max())
    kv_head_of = np.arange(batch * heads) // (heads // kv_heads)

    start = time.perf_counter()
    shared_heads = 0 if local else batch * kv_heads
    sizes = _packed_sizes(seq_kv, depth, width)
    storage = scratch.take(shared_heads * sum(sizes))
    packed = _packed(storage, shared_heads, sizes, ceil_div(seq_kv, PACK_BLOCK))
    output = np.empty((batch * heads, seq_q, width), np.float32)
    row_max, row_sum = np.empty((2, batch * heads, seq_q), np.float32)

    tile_sizes = _packed_sizes(kv_tile, depth, width) if local else (0, 0)
    own_size = align_up(kernel.scratch_size(kv_tile, seq_kv, block_rows, depth, width), CACHE_LINE)

    def work(counter: npt.NDArray[np.int64]) -> None:
        own = scratch.take(own_size + sum(tile_sizes))
        one_tile = _packed_tile(own[own_size:], tile_sizes, align_up(kv_tile, PACK_BLOCK) if local else 0)
        bounds = np.zeros(2 * kernel.GROUP_ROWS, np.int64)
        kernel.attention_worker(
            q, k, v, output, row_max, row_sum, packed, one_tile, kv_head_of, tasks, counter,
            own[:own_size], bounds, kv_tile, sight, numerics,
        )  # fmt: skip
        scratch.give_back(own)

    _run_workers(workers, len(tasks), progress, work)
    scratch.give_back(storage)
    wall_s = time.perf_counter() - start
    return KernelRun(
        output=output.reshape(batch, heads, seq_q, width),
        row_max=row_max.reshape(batch, heads, seq_q),
        row_sum=row_sum.reshape(batch, heads, seq_q),
        wall_s=wall_s,
        threads=workers,
    )


def warm_up() -> float:
    """Compile the kernels, or load them from Numba's cache, and return the seconds it took.

    All policies share one compiled kernel; a second call costs next to nothing.
    """
    start = time.perf_counter()
    x = np.ones((1, 1, 1, 1), np.float32)
    x.flags.writeable = False
    policy = PRECISIONS[DEFAULT_PRECISION]
    run_kernel(x, x, x, tile=Tile(), policy=policy, band=Band(left=0, right=0), scale=1.0, threads=1)
    return time.perf_counter() - start


def _numerics(tile: Tile, policy: Precision, scale: float) -> Any:
    from tilesim.kernels import rounding, softmax

    kinds = {"float": rounding.FLOAT_KIND, "half": rounding.HALF_KIND, "bfloat16": rounding.BFLOAT16_KIND}
    data_kind = kinds[policy.data.name]
    basic = is_basic_block(tile.softmax_rows, tile.kv_tile, policy.data.itemsize)
    sum_form = softmax.BASIC_SUM if basic else softmax.GENERIC_SUM
    if policy.name == PLAIN_POLICY:
        sum_form = softmax.PLAIN_SUM
    return softmax.Numerics(
        scale=np.float32(rounding.round_even(np.float32(scale), data_kind)),
        score_kind=data_kind,
        data_kind=data_kind,
        state_kind=kinds[policy.state.name],
        sum_form=sum_form,
        guard_empty=True,
    )


def _worker_count(threads: int | None, flops: int) -> int:
    import numba

    wanted = numba.get_num_threads() if threads is None else threads
    return 1 if flops < SMALL_FLOPS else max(1, wanted)


def _tasks(
    heads: int, seq_q: int, seq_kv: int, band: Band, workers: int, most_rows: int
) -> npt.NDArray[np.int64]:
    """Return (head, first row, rows) of every task, heaviest first so that all workers end together."""
    rows = min(most_rows, align_up(seq_q, 8))
    while rows > 8 and most_rows == BLOCK_ROWS and heads * ceil_div(seq_q, rows) < 4 * workers:
        rows //= 2
    tops = np.arange(0, seq_q, rows, dtype=np.int64)
    counts = np.minimum(rows, seq_q - tops)
    first, _ = band.key_range(tops, seq_q, seq_kv)
    _, last = band.key_range(tops + counts - 1, seq_q, seq_kv)
    order = np.argsort(-(counts * np.maximum(last - first, 0)), kind="stable")
    blocks = np.repeat(order, heads)
    head = np.tile(np.arange(heads, dtype=np.int64), len(order))
    return np.ascontiguousarray(np.stack([head, tops[blocks], counts[blocks]], axis=1))


def _packed_sizes(seq_kv: int, depth: int, width: int) -> tuple[int, int]:
    """Return the float32 elements of the packed keys and values of one head."""
    from tilesim.kernels.vector import padded_columns

    return padded_columns(seq_kv) * depth, padded_columns(width) * seq_kv


def _packed(storage: npt.NDArray[np.float32], kv_heads: int, sizes: tuple[int, int], blocks: int) -> Any:
    """Cut storage for the keys and values of some heads out of one array."""
    from tilesim.kernels.packing import Packed

    keys, values = (kv_heads * size for size in sizes)
    return Packed(
        keys=storage[:keys].reshape(kv_heads, sizes[0]),
        values=storage[keys : keys + values].reshape(kv_heads, sizes[1]),
        finite=np.empty((kv_heads, blocks), np.bool_),
        block=PACK_BLOCK,
    )


def _packed_tile(storage: npt.NDArray[np.float32], sizes: tuple[int, int], block: int) -> Any:
    """Cut storage for one tile of one head; a `block` of 0 says that it is not used."""
    packed = _packed(storage, 1, sizes, 1)
    return packed._replace(keys=packed.keys[0], values=packed.values[0], finite=packed.finite[0], block=block)


def _run_workers(
    workers: int,
    total: int,
    progress: Progress | None,
    work: Callable[[npt.NDArray[np.int64]], None],
) -> None:
    """Run `work` in that many threads on shared counters, `total` tasks in all, and wait for all of them.

    An exception, Ctrl-C included, stops all workers after the task at hand. The calling thread only watches:
    if it worked as well, a thread that it starts would often share its core for the first milliseconds.
    """
    from tilesim.kernels.counter import COUNTERS, DONE_TASKS, STOPPED

    counter = np.zeros(COUNTERS, np.int64)
    failures: list[BaseException] = []

    def guarded(place: int) -> None:
        try:
            _spread_out(place)
            work(counter)
        except BaseException as error:
            failures.append(error)
            counter[STOPPED] = 1

    if workers == 1 and total == 1 and progress is None:
        work(counter)
        return
    threads = [threading.Thread(target=guarded, args=(place,), daemon=True) for place in range(workers)]
    for thread in threads:
        thread.start()
    try:
        alive = threads
        while alive:
            alive[0].join(POLL_S)
            alive = [thread for thread in alive if thread.is_alive()]
            if progress is not None and counter[DONE_TASKS] < total:
                progress(int(counter[DONE_TASKS]), total)
        if progress is not None and not failures:
            progress(total, total)
    except BaseException:
        counter[STOPPED] = 1
        for thread in threads:
            thread.join()
        raise
    if failures:
        raise failures[0]


def _spread_out(place: int) -> None:
    """Move the calling thread to a processor of its own, from where the system may move it on.

    A thread begins on the processor of the one that started it, and may share it for milliseconds.
    """
    if not hasattr(os, "sched_setaffinity"):
        return
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) > 1:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, {allowed[place % len(allowed)]})
            os.sched_setaffinity(0, allowed)

"""Runs the compiled kernels: lays out storage, cuts the work into tasks, hands them to worker threads."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numpy as np
import numpy.typing as npt

from tilesim import kernel_inputs, scratch
from tilesim.precision import DEFAULT_PRECISION, PRECISIONS, Precision
from tilesim.problem import Problem, read_problem
from tilesim.tensors import as_float32
from tilesim.tile import Tile
from tilesim.units import align_up, ceil_div
from tilesim.variant import VariantOptions
from tilesim.workers import Progress, run_workers

PACK_BLOCK = 256
"""Keys packed as one task, and over which V is known to be finite or not."""
CACHE_LINE = 16
"""float32 elements of one cache line."""
LOCAL_ROWS = 4096
"""Query rows of a head up to which a worker takes all of them, and packs the keys for itself."""
LOCAL_KEYS = 512
"""Keys that it packs at once, if not a whole tile."""
FOLDED_ROWS = 128
"""Query rows, of all heads that share their keys, up to which these heads are taken as one."""
SMALL_FLOPS = 2_000_000
"""Below this, waking a thread costs more than it saves."""


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
    problem: Problem,
    *,
    tile: Tile,
    policy: Precision,
    threads: int | None = None,
    progress: Progress | None = None,
) -> KernelRun:
    """Run the tiled kernel on a checked problem.

    Parameters
    ----------
    problem : Problem
    tile : Tile
        Only `kv_tile` and, at 1,024 keys, `softmax_rows` change numbers.
    policy : Precision
    threads : int, optional
        Worker threads; by default as many as Numba is set to use. Never changes a bit of the result.
    progress : callable, optional
    """
    from tilesim.kernels import attention as kernel

    workload = problem.workload
    work = _Work.cut(problem, tile, policy, threads)
    start = time.perf_counter()
    sizes = _packed_sizes(workload.seq_kv, workload.head_dim, workload.head_dim_v)
    shared_heads = 0 if work.local_keys else len(work.k)
    storage = scratch.take(shared_heads * sum(sizes))
    packed = _packed(storage, shared_heads, sizes, ceil_div(workload.seq_kv, PACK_BLOCK))
    rows_of_heads, rows = work.q.shape[:2]
    output = scratch.lend((len(work.splits) - 1, rows_of_heads, rows, workload.head_dim_v))
    row_max, row_sum = np.empty((2, *output.shape[:3]), np.float32)
    local_sizes = _packed_sizes(work.local_keys, workload.head_dim, workload.head_dim_v)
    own_size = align_up(work.scratch_size(), CACHE_LINE)
    launch = kernel_inputs.launch(workload, rows_of_heads, work.folded)
    numerics = kernel_inputs.numerics(tile, policy, problem)
    variant = kernel_inputs.score_variant(problem, policy)

    # The kernel has no more than the address of the mask.
    def run(counter: npt.NDArray[np.int64], _alive: Any = problem.variant.attn_mask) -> None:
        own = scratch.take(own_size + sum(local_sizes))
        local = _packed_block(own[own_size:], local_sizes, work.local_keys)
        kernel.attention_worker(
            work.q, work.k, work.v, output, row_max, row_sum, packed, local, work.tasks, work.splits, counter,
            own[:own_size], np.zeros(2 * kernel.GROUP_ROWS, np.int64), work.kv_tile, launch, numerics,
            variant,
        )  # fmt: skip
        scratch.give_back(own)

    run_workers(work.workers, len(work.tasks), progress, run)
    scratch.give_back(storage)
    one_output, one_max, one_sum = kernel_inputs.combine_splits(output, row_max, row_sum, policy)
    wall_s = time.perf_counter() - start
    rows_shape = (workload.batch, workload.heads, workload.seq_q)
    return KernelRun(
        output=one_output.reshape(*rows_shape, workload.head_dim_v),
        row_max=one_max.reshape(rows_shape),
        row_sum=one_sum.reshape(rows_shape),
        wall_s=wall_s,
        threads=work.workers,
    )


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class _Work:
    """A problem as workers take it.

    Attributes
    ----------
    q, k, v : float32 arrays (heads, rows, head_dim)
        Rows of `folded` query heads that share their keys follow each other in `q`: one longer head.
    local_keys : int
        Keys that a worker packs at once, for itself; 0 if all of them are packed for all workers.
    tasks, splits : int64 arrays
        See `kernels.attention.attention_worker`.
    """

    q: npt.NDArray[np.float32]
    k: npt.NDArray[np.float32]
    v: npt.NDArray[np.float32]
    folded: int
    local_keys: int
    kv_tile: int
    splits: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int64]
    workers: int

    @classmethod
    def cut(cls, problem: Problem, tile: Tile, policy: Precision, threads: int | None) -> _Work:
        from tilesim.kernels.attention import NEAR_ROWS

        workload, tensors = problem.workload, problem.tensors
        q, k, v = (_heads_together(as_float32(x, policy.data)) for x in (tensors.q, tensors.k, tensors.v))
        seq_q, seq_kv = workload.seq_q, workload.seq_kv
        width = workload.head_dim + workload.head_dim_v
        workers = _worker_count(threads, 2 * len(q) * seq_q * seq_kv * width)
        group = workload.heads // workload.kv_heads
        # Heads that leave a worker idle at the end are better cut up.
        balanced = len(k) >= 2 * workers and (len(k) % workers == 0 or len(k) >= 8 * workers)
        local = seq_q * group <= LOCAL_ROWS and balanced
        folded = group if local or seq_q * group <= FOLDED_ROWS else 1
        q = q.reshape(len(q) // folded, folded * seq_q, workload.head_dim)
        kv_tile = max(1, min(tile.kv_tile, seq_kv))
        local_keys = min(kv_tile * max(1, LOCAL_KEYS // kv_tile), max(1, seq_kv)) if local else 0
        splits = kernel_inputs.split_keys(seq_kv, kv_tile, tile.kv_splits)
        most_rows = LOCAL_ROWS if local else NEAR_ROWS
        cuts = len(q) * (len(splits) - 1)
        while not local and most_rows > 8 and cuts * ceil_div(q.shape[1], most_rows) < 4 * workers:
            most_rows //= 2
        tasks = kernel_inputs.tasks(workload, len(q), folded, len(splits) - 1, most_rows)
        return cls(
            q=q, k=k, v=v, folded=folded, local_keys=local_keys, kv_tile=kv_tile, splits=splits, tasks=tasks,
            workers=workers,
        )  # fmt: skip

    def scratch_size(self) -> int:
        """Return the float32 elements of scratch of one worker, packed tiles aside."""
        from tilesim.kernels.attention import scratch_size

        most_rows = int(self.tasks[:, 2].max(initial=0))
        seq_kv, depth, width = self.k.shape[1], self.k.shape[2], self.v.shape[2]
        size: int = scratch_size(self.kv_tile, seq_kv, most_rows, depth, width)
        return size


def warm_up(*, variant: bool = False) -> float:
    """Compile the kernel, or load it from Numba's cache, and return the seconds it took.

    All policies share one compiled kernel; a second call costs next to nothing.

    Parameters
    ----------
    variant : bool
        Whether for problems with a mask tensor, softcap, ALiBi or sinks, for which it is compiled apart.
    """
    start = time.perf_counter()
    x = np.ones((1, 1, 1, 1), np.float32)
    options: VariantOptions = {"sinks": [0.0]} if variant else {}
    problem = read_problem(x, x, x, mask="full", window=None, scale=1.0, options=options)
    run_kernel(problem, tile=Tile(), policy=PRECISIONS[DEFAULT_PRECISION], threads=1)
    return time.perf_counter() - start


def _heads_together(array: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    batch, heads, *rest = array.shape
    return array.reshape(batch * heads, *rest)


def _worker_count(threads: int | None, flops: int) -> int:
    import numba
    from numba.np.ufunc import parallel

    wanted = threads
    if wanted is None:
        # Asking Numba would start its own threads, which are not used here, in a layer that may be absent.
        asked: bool = parallel._is_initialized
        wanted = numba.get_num_threads() if asked else numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    return 1 if flops < SMALL_FLOPS else max(1, wanted)


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


def _packed_block(storage: npt.NDArray[np.float32], sizes: tuple[int, int], block: int) -> Any:
    """Cut storage for one block of keys of one head; a `block` of 0 says that it is not used."""
    packed = _packed(storage, 1, sizes, 1)
    return packed._replace(keys=packed.keys[0], values=packed.values[0], finite=packed.finite[0], block=block)

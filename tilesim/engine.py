"""Runs the compiled kernels: lays out storage as planned, hands tasks to worker threads."""

from __future__ import annotations

import dataclasses
import time
from typing import Any

import numba
import numpy as np
import numpy.typing as npt
from numba.np.ufunc import parallel

from tilesim import kernel_inputs, scratch
from tilesim.kernels import attention as kernel
from tilesim.kernels.packing import Packed
from tilesim.plan import PackedSize, plan_for
from tilesim.precision import DEFAULT_PRECISION, PRECISIONS, Precision
from tilesim.problem import Problem, read_problem
from tilesim.tensors import as_float32
from tilesim.tile import Tile
from tilesim.variant import VariantOptions
from tilesim.workers import Progress, run_workers


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
    workload, tensors = problem.workload, problem.tensors
    plan = plan_for(workload, tile, _default_threads() if threads is None else threads)
    q = as_float32(tensors.q, policy.data).reshape(plan.q_shape)
    k = as_float32(tensors.k, policy.data).reshape(plan.k_shape)
    v = as_float32(tensors.v, policy.data).reshape(plan.v_shape)
    start = time.perf_counter()
    storage = scratch.take(plan.shared.total)
    packed = _packed(storage, plan.shared)
    output = scratch.lend(plan.output_shape)
    row_max, row_sum = np.empty((2, *output.shape[:3]), np.float32)
    numerics = kernel_inputs.numerics(tile, policy, problem)
    variant = kernel_inputs.score_variant(problem, policy)

    # The kernel has no more than the address of the mask.
    def run(counter: npt.NDArray[np.int64], _alive: Any = problem.variant.attn_mask) -> None:
        own = scratch.take(plan.scratch_size + plan.local.total)
        local = _packed_block(own[plan.scratch_size :], plan.local)
        kernel.attention_worker(
            q, k, v, output, row_max, row_sum, packed, local, plan.tasks, plan.splits, counter,
            own[: plan.scratch_size], np.zeros(2 * kernel.GROUP_ROWS, np.int64), plan.kv_tile, plan.launch,
            numerics, variant,
        )  # fmt: skip
        scratch.give_back(own)

    run_workers(plan.workers, len(plan.tasks), progress, run, brief=plan.brief)
    scratch.give_back(storage)
    one_output, one_max, one_sum = kernel_inputs.combine_splits(output, row_max, row_sum, policy)
    wall_s = time.perf_counter() - start
    rows_shape = (workload.batch, workload.heads, workload.seq_q)
    return KernelRun(
        output=one_output.reshape(*rows_shape, workload.head_dim_v),
        row_max=one_max.reshape(rows_shape),
        row_sum=one_sum.reshape(rows_shape),
        wall_s=wall_s,
        threads=plan.workers,
    )


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


def _default_threads() -> int:
    # Asking Numba would start its own threads, which are not used here, in a layer that may be absent.
    asked: bool = parallel._is_initialized
    wanted: int = numba.get_num_threads() if asked else numba.config.NUMBA_NUM_THREADS  # type: ignore[attr-defined]
    return max(1, wanted)


def _packed(storage: npt.NDArray[np.float32], size: PackedSize) -> Packed:
    """Cut the room for the keys and values of some heads out of one array."""
    keys = size.heads * size.keys
    return Packed(
        keys=storage[:keys].reshape(size.heads, size.keys),
        values=storage[keys : size.total].reshape(size.heads, size.values),
        finite=np.empty((size.heads, size.blocks), np.bool_),
        block=size.block,
    )


def _packed_block(storage: npt.NDArray[np.float32], size: PackedSize) -> Packed:
    """Cut the room for one block of keys of one head; a `block` of 0 says that it is not used."""
    packed = _packed(storage, size)
    return packed._replace(keys=packed.keys[0], values=packed.values[0], finite=packed.finite[0])

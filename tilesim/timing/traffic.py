"""What a whole launch computes and moves."""

from __future__ import annotations

import dataclasses

import numpy as np
import numpy.typing as npt

from tilesim.memory.buffers import Launch
from tilesim.timing.schedule import PARTIAL, SKIPPED, VECTOR_CORES, Chunk, Schedule
from tilesim.units import ceil_div


@dataclasses.dataclass(frozen=True, kw_only=True)
class Traffic:
    """Totals of a launch.

    Attributes
    ----------
    executed_flops : int
        Products of whole tiles, masked pairs included.
    gm_bytes, ub_bytes : int
        Bytes through GM (tensors and exchange between cores), and in and out of UB.
    """

    executed_flops: int
    gm_bytes: int
    ub_bytes: int


def traffic(launch: Launch, plan: Schedule) -> Traffic:
    """Return operations and bytes of all tasks, and of combining splits."""
    workload, data = launch.workload, launch.precision.data.itemsize
    runs = np.bincount(plan.order, minlength=len(plan.chunks)).tolist()

    def total(sizes: list[int]) -> int:
        return sum(size * times for size, times in zip(sizes, runs, strict=True))

    columns = [sum(chunk.columns) for chunk in plan.chunks]
    products = total([chunk.rows * keys for chunk, keys in zip(plan.chunks, columns, strict=True)])
    pairs = total([_pairs(launch, chunk, chunk.kinds != SKIPPED) for chunk in plan.chunks])
    masked = total([_pairs(launch, chunk, chunk.kinds == PARTIAL) for chunk in plan.chunks])
    partials = total([chunk.rows * len(chunk.columns) for chunk in plan.chunks]) * workload.head_dim_v
    partial_bytes = partials * launch.dtype("partial").itemsize
    mask_bytes = masked * launch.dtype("mask").itemsize * (launch.layout.mask_buffers > 0)
    widths = workload.head_dim + workload.head_dim_v
    rows = workload.batch * workload.heads * workload.seq_q
    output_bytes = rows * workload.head_dim_v * data
    # Written by each split and read when they are combined.
    split_bytes = 2 * rows * launch.splits * launch.split_row_bytes * (launch.splits > 1)
    tensors = total(columns) * widths + rows * launch.splits * workload.head_dim
    return Traffic(
        executed_flops=2 * products * widths,
        # Scores, probabilities and partial products go to GM and come back.
        gm_bytes=tensors * data + output_bytes + 2 * (products + pairs) * data + 2 * partial_bytes
        + mask_bytes + split_bytes,
        ub_bytes=2 * pairs * data + partial_bytes + mask_bytes + output_bytes + split_bytes,
    )  # fmt: skip


def _pairs(launch: Launch, chunk: Chunk, wanted: npt.NDArray[np.bool_]) -> int:
    """Return rows times columns of the score tiles that are wanted: (tiles, vector cores, groups)."""
    own = np.array([ceil_div(chunk.rows, VECTOR_CORES), chunk.rows // VECTOR_CORES])
    rows = launch.tile.softmax_rows
    sizes = np.clip(own[:, None] - rows * np.arange(wanted.shape[2]), 0, rows)
    return int((wanted * sizes).sum(axis=(1, 2)) @ np.array(chunk.columns, np.int64))

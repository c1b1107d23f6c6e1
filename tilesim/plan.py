"""How a workload is cut into tasks, threads and storage, whatever its tensors hold."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np
import numpy.typing as npt

from tilesim.kernel_inputs import split_keys
from tilesim.kernels.attention import NEAR_ROWS, scratch_size
from tilesim.kernels.sight import Launch
from tilesim.kernels.vector import padded_columns
from tilesim.tile import Tile
from tilesim.units import align_up, ceil_div
from tilesim.workload import Workload

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
BRIEF_FLOPS = 10_000_000_000
"""Up to this, no one waits long for the end: 50 ms at 200 GFLOP/s, 1 s at 10."""


@dataclasses.dataclass(frozen=True, kw_only=True)
class PackedSize:
    """Room for packed keys and values; see `kernels.packing.Packed`.

    Attributes
    ----------
    heads : int
        Heads that share it.
    keys, values : int
        float32 elements for one head.
    blocks, block : int
        Blocks of one head, and keys of a block.
    """

    heads: int
    keys: int
    values: int
    blocks: int
    block: int

    @property
    def total(self) -> int:
        """float32 elements for all heads."""
        return self.heads * (self.keys + self.values)


@dataclasses.dataclass(frozen=True, kw_only=True, eq=False)
class Plan:
    """A workload as workers take it.

    Attributes
    ----------
    workers : int
        Threads.
    brief : bool
        Whether it is over so soon that nobody needs to watch it.
    q_shape, k_shape, v_shape : tuple of int
        Shapes (heads, rows, head_dim) in which the kernel takes the tensors. Rows of query heads that share
        their keys may follow each other in `q`: one longer head.
    kv_tile : int
        Keys of one tile, at most all of them.
    splits, tasks : int64 arrays
        See `kernels.attention.attention_worker`.
    launch : Launch
        What all tasks share.
    shared, local : PackedSize
        Room for keys and values packed for all workers, and by each for itself: one of them is empty.
    scratch_size : int
        float32 elements of scratch of one worker, packed tiles aside: whole cache lines.
    """

    workers: int
    brief: bool
    q_shape: tuple[int, int, int]
    k_shape: tuple[int, int, int]
    v_shape: tuple[int, int, int]
    kv_tile: int
    splits: npt.NDArray[np.int64]
    tasks: npt.NDArray[np.int64]
    launch: Launch
    shared: PackedSize
    local: PackedSize
    scratch_size: int

    @property
    def output_shape(self) -> tuple[int, int, int, int]:
        """Shape (splits, rows of heads, rows, head_dim_v) of what the kernel writes."""
        return len(self.splits) - 1, *self.q_shape[:2], self.v_shape[2]


@functools.lru_cache(maxsize=4)
def plan_for(workload: Workload, tile: Tile, threads: int) -> Plan:
    """Return the plan for so many threads at most; the last few are kept for the calls that repeat them."""
    seq_q, seq_kv = workload.seq_q, workload.seq_kv
    depth, width = workload.head_dim, workload.head_dim_v
    heads, kv_heads = workload.batch * workload.heads, workload.batch * workload.kv_heads
    flops = 2 * heads * seq_q * seq_kv * (depth + width)
    workers = 1 if flops < SMALL_FLOPS else threads
    group = workload.heads // workload.kv_heads
    # Heads that leave a worker idle at the end are better cut up.
    balanced = kv_heads >= 2 * workers and (kv_heads % workers == 0 or kv_heads >= 8 * workers)
    local = seq_q * group <= LOCAL_ROWS and balanced
    folded = group if local or seq_q * group <= FOLDED_ROWS else 1
    rows_of_heads, rows = heads // folded, folded * seq_q
    kv_tile = max(1, min(tile.kv_tile, seq_kv))
    local_keys = min(kv_tile * max(1, LOCAL_KEYS // kv_tile), max(1, seq_kv)) if local else 0
    splits = split_keys(seq_kv, kv_tile, tile.kv_splits)
    most_rows = LOCAL_ROWS if local else NEAR_ROWS
    cuts = rows_of_heads * (len(splits) - 1)
    while not local and most_rows > 8 and cuts * ceil_div(rows, most_rows) < 4 * workers:
        most_rows //= 2
    tasks = _tasks(workload, rows_of_heads, folded, len(splits) - 1, most_rows)
    own: int = scratch_size(kv_tile, seq_kv, int(tasks[:, 2].max(initial=0)), depth, width)
    return Plan(
        workers=workers,
        brief=flops < BRIEF_FLOPS,
        q_shape=(rows_of_heads, rows, depth),
        k_shape=(kv_heads, seq_kv, depth),
        v_shape=(kv_heads, seq_kv, width),
        kv_tile=kv_tile,
        splits=splits,
        tasks=tasks,
        launch=_launch(workload, rows_of_heads, folded),
        shared=_packed_size(0 if local else kv_heads, seq_kv, PACK_BLOCK, depth, width),
        local=_packed_size(1, local_keys, local_keys, depth, width),
        scratch_size=align_up(own, CACHE_LINE),
    )


def _packed_size(heads: int, keys: int, block: int, depth: int, width: int) -> PackedSize:
    return PackedSize(
        heads=heads,
        keys=padded_columns(keys) * depth,
        values=padded_columns(width) * keys,
        blocks=ceil_div(keys, block) if block else 1,
        block=block,
    )


def _launch(workload: Workload, rows_of_heads: int, folded: int) -> Launch:
    """Return what all tasks share, for rows of heads that hold `folded` query heads each."""
    band = workload.band
    each = rows_of_heads // max(1, workload.batch)
    lengths = np.repeat(np.array(workload.lengths, np.int64), each)
    shifts = np.array([band.shift(workload.seq_q, length) for length in workload.lengths], np.int64)
    return Launch(
        left=band.left,
        right=band.right,
        shifts=np.repeat(shifts, each),
        lengths=lengths,
        seq_q=workload.seq_q,
        group=folded,
        kv_head_of=np.arange(rows_of_heads) * folded // (workload.heads // workload.kv_heads),
    )


def _tasks(
    workload: Workload, rows_of_heads: int, folded: int, splits: int, most_rows: int
) -> npt.NDArray[np.int64]:
    """Return (row of heads, first row, rows, split) of all tasks, heaviest first so that all end together."""
    seq_q, seq_kv, band = workload.seq_q, workload.seq_kv, workload.band
    count = folded * seq_q
    rows = min(most_rows, align_up(max(1, count), 8))
    tops = np.arange(0, count, rows, dtype=np.int64)
    counts = np.minimum(rows, count - tops)
    order = np.arange(len(tops))
    if folded == 1:
        first, _ = band.key_range(tops, seq_q, seq_kv)
        _, last = band.key_range(tops + (counts - 1), seq_q, seq_kv)
        order = np.argsort(counts * np.minimum(first - last, 0), kind="stable")
    found = np.empty((len(tops), splits, rows_of_heads, 4), np.int64)
    found[..., 0] = np.arange(rows_of_heads)
    found[..., 1] = tops[order][:, None, None]
    found[..., 2] = counts[order][:, None, None]
    found[..., 3] = np.arange(splits)[:, None]
    return found.reshape(-1, 4)
